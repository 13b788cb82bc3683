-- The patch: per part, what the joins change in which row.
CREATE TABLE patch AS SELECT * FROM patch_rows

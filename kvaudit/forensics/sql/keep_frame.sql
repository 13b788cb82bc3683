-- Keep a frame as a table.
CREATE TABLE $name AS SELECT * FROM $name_frame

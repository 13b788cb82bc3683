-- A log scan: its table, with columns that an older version did not write as null.
CREATE TEMPORARY VIEW scanned AS
SELECT * FROM scanned_empty UNION ALL BY NAME SELECT * FROM scanned_file;

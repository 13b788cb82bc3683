-- A live run: no log was scanned.
CREATE TEMPORARY VIEW scanned AS SELECT * FROM scanned_empty;

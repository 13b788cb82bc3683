-- Add a batch to the patch.
INSERT INTO patch SELECT * FROM patch_rows

-- What the joins change in the rows of one part.
SELECT * EXCLUDE (part) FROM patch WHERE part = $part

-- Answered requests that have a value in one column.
SELECT count(*) FROM served WHERE is_answered AND $column IS NOT NULL

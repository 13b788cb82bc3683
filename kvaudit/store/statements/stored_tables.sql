-- Every table of a run file with its columns, in their order.
SELECT table_name, list(column_name ORDER BY column_index) AS columns
FROM duckdb_columns()
WHERE database_name = 'stored' AND NOT internal
GROUP BY table_name
ORDER BY table_name;

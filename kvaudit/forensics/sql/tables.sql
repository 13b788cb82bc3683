-- The tables of a foreign DuckDB file.
SELECT table_name FROM information_schema.tables ORDER BY table_name

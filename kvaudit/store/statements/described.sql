-- What each table and column of a database is for.
SELECT held.table_name, seen.comment AS table_comment, held.column_name, held.data_type, held.comment
FROM duckdb_columns() AS held
JOIN duckdb_tables() AS seen ON seen.table_oid = held.table_oid AND seen.database_oid = held.database_oid
WHERE NOT held.internal
ORDER BY held.table_oid, held.column_index;

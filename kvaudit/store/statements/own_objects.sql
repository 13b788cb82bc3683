-- Views and macros that a run file brings along; a run of kvaudit holds none.
SELECT view_name AS name FROM duckdb_views() WHERE database_name = 'stored' AND NOT internal
UNION ALL
SELECT function_name FROM duckdb_functions() WHERE database_name = 'stored' AND NOT internal;

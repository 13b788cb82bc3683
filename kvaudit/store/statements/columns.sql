-- The columns of each of our views.
SELECT seen.view_name, list(held.column_name ORDER BY held.column_index) AS columns
FROM duckdb_views() AS seen
JOIN duckdb_columns() AS held ON held.table_oid = seen.view_oid AND held.database_name = seen.database_name
WHERE seen.temporary AND NOT seen.internal AND NOT starts_with(seen.view_name, 'scanned')
GROUP BY seen.view_name
ORDER BY seen.view_name;

-- Who has to be told what: whose text got out, and who received text of others?
SELECT tenant, happened, count(DISTINCT request_id) AS requests,
    list_sort(list(DISTINCT other_tenant)) AS others, min(seen_at) AS first_at, max(seen_at) AS last_at,
    list_sort(list(DISTINCT request_id))[1:20] AS request_ids
FROM (
    SELECT source_tenant AS tenant, 'text reached others' AS happened,
        source_request_id AS request_id, sink_tenant AS other_tenant, sink_sent_at AS seen_at
    FROM exposures
    WHERE source_tenant IS NOT NULL
    UNION ALL
    SELECT sink_tenant, 'received text of others', sink_request_id, source_tenant, sink_sent_at
    FROM exposures
)
GROUP BY tenant, happened
ORDER BY tenant, happened;

-- Which requests were retried, logged twice, or seen at several layers?
SELECT
    dedup_group, min(request_id) AS request_id, min(tenant_id) AS tenant, count(*) AS records,
    count(DISTINCT source_file) AS sources, max(attempt) AS attempt,
    list(DISTINCT source_layer ORDER BY source_layer) AS layers,
    count(DISTINCT output_digest) > 1 AS layers_differ
FROM log_rows
GROUP BY dedup_group
HAVING count(*) > 1 OR max(attempt) > 1
ORDER BY layers_differ DESC, records DESC, dedup_group;

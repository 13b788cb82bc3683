-- Who received text of others: in how many answers, of how many tenants and requests?
SELECT
    sink_tenant, count(DISTINCT sink_request_id) AS answers,
    count(DISTINCT source_tenant) AS tenants, list_sort(list(DISTINCT source_tenant)) AS sources,
    count(DISTINCT (source_tenant, source_request_id)) AS source_requests,
    min(sink_sent_at) AS first_at, max(sink_sent_at) AS last_at
FROM exposures
GROUP BY sink_tenant
ORDER BY answers DESC, sink_tenant;

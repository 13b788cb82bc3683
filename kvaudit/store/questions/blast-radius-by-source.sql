-- Whose text got out: which requests reached how many answers of which tenants?
SELECT
    source_tenant, source_request_id, count(DISTINCT sink_request_id) AS answers,
    count(DISTINCT sink_tenant) AS tenants, list_sort(list(DISTINCT sink_tenant)) AS receivers,
    min(incident) AS incident, min(sink_sent_at) AS first_at, max(sink_sent_at) AS last_at
FROM exposures
WHERE source_request_id IS NOT NULL
GROUP BY source_tenant, source_request_id
ORDER BY answers DESC, source_tenant, source_request_id;

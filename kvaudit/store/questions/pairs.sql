-- Which tenant got text of which other one, how often, from when to when?
SELECT
    source_tenant, sink_tenant, count(*) AS findings, count(DISTINCT sink_request_id) AS requests,
    min(sink_sent_at) AS first_at, max(sink_sent_at) AS last_at
FROM exposures
GROUP BY ALL
ORDER BY findings DESC, source_tenant, sink_tenant;

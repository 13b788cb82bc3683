-- Who is in here, how much did each send, and how much is found on them?
SELECT
    tenant, organisation, count(*) AS requests, sum(prompt_tokens) AS prompt_tokens,
    sum(completion_tokens) AS completion_tokens,
    count(*) FILTER (request_id IN (SELECT sink_request_id FROM findings)) AS with_findings,
    min(sent_at) AS first_at, max(sent_at) AS last_at
FROM requests
GROUP BY tenant, organisation
ORDER BY with_findings DESC, requests DESC, tenant;

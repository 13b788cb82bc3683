-- What happened hour by hour: requests, errors, findings?
SELECT
    date_trunc('hour', sent_at) AS hour, count(*) AS requests, count(DISTINCT tenant) AS tenants,
    count(*) FILTER (outcome <> 'answered') AS not_answered,
    count(*) FILTER (request_id IN (SELECT sink_request_id FROM findings)) AS with_findings,
    max(prompt_tokens) AS longest_prompt
FROM requests
GROUP BY hour
ORDER BY hour;

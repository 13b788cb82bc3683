-- Is one replica worse than the others?
SELECT
    replica, model, count(*) AS answers, count(DISTINCT tenant) AS tenants,
    count(*) FILTER (request_id IN (SELECT sink_request_id FROM findings)) AS with_findings,
    round(with_findings / answers, 6) AS rate,
    count(*) FILTER (outcome IN ('error', 'rate_limited', 'refused')) AS not_answered,
    round(median(ttft_ms), 1) AS median_ttft_ms, max(prompt_tokens) AS longest_prompt,
    min(sent_at) AS first_at, max(sent_at) AS last_at
FROM requests
GROUP BY replica, model
ORDER BY rate DESC, answers DESC, replica;

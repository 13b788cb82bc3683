-- Which models were asked, and how do their numbers look?
SELECT
    model, count(*) AS requests, count(DISTINCT tenant) AS tenants, count(DISTINCT replica) AS replicas,
    max(prompt_tokens) AS longest_prompt, round(median(ttft_ms), 1) AS median_ttft_ms,
    round(avg(completion_tokens), 1) AS mean_completion_tokens,
    count(*) FILTER (request_id IN (SELECT sink_request_id FROM findings)) AS with_findings
FROM requests
GROUP BY model
ORDER BY requests DESC, model;

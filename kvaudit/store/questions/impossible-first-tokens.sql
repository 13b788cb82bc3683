-- Which first tokens came before the uncached prompt can have been read?
SELECT started_at, request_id, tenant, uncached_tokens, ttft_s, expected_ttft_s,
    round(expected_ttft_s / ttft_s, 1) AS times_too_early
FROM accounts
WHERE rule_id = 'KVA303'
ORDER BY times_too_early DESC, request_id;

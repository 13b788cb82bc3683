-- Which requests got fewer KV bytes than their prompt needs?
SELECT started_at, request_id, tenant, prompt_tokens, transferred_bytes, round(score, 1) AS times_too_few
FROM accounts
WHERE rule_id = 'KVA306'
ORDER BY score DESC, request_id;

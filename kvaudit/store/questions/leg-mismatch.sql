-- On which requests do the prefill and decode legs disagree about the length?
SELECT started_at, request_id, tenant, prefill_prompt_tokens, decode_prompt_tokens
FROM accounts
WHERE rule_id = 'KVA305'
ORDER BY started_at, request_id;

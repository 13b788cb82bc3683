-- Where do the server's own numbers contradict each other?
SELECT rule_id, started_at, request_id, tenant, prompt_tokens, client_prompt_tokens, capacity_tokens,
    prefill_prompt_tokens, decode_prompt_tokens, transferred_bytes, passed, explained_by
FROM accounts
WHERE rule_id IN ('KVA301', 'KVA302', 'KVA305', 'KVA306')
ORDER BY passed DESC, rule_id, started_at, request_id;

-- Which prompts longer than a pool were answered with success, and what explains it?
SELECT started_at, request_id, tenant, prompt_tokens, capacity_tokens, ttft_s, expected_ttft_s, passed, explained_by
FROM accounts
WHERE rule_id = 'KVA302'
ORDER BY passed DESC, prompt_tokens DESC, request_id;

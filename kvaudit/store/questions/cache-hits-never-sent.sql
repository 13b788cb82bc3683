-- Which answers were served from a cache on a prefix that the tenant had not sent before, and who had?
SELECT started_at, request_id, tenant, cached_tokens, source_tenant, source_request_id, passed, explained_by
FROM accounts
WHERE rule_id = 'KVA304'
ORDER BY passed DESC, cached_tokens DESC, request_id;

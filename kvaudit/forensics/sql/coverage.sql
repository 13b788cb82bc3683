-- Every request by whether its answer can be examined, and if not, why. Without a tenant it can't.
WITH judged AS (
    SELECT
        coalesce(input_content_state, 'absent') AS prompt_state, source_format,
        CASE
            WHEN is_partner THEN 'apart'
            WHEN http_response_status_code >= 400 OR list_contains(gen_ai_response_finish_reasons, 'error')
                OR (error_type IS NOT NULL AND output_content_state = 'absent') THEN 'apart'
            WHEN regexp_matches(coalesce(gen_ai_operation_name, '') || coalesce(endpoint, ''),
                '(?i)embed|rerank|moderation|health|/models|tokenize|image_gen|transcri|speech') THEN 'apart'
            WHEN disaggregation_role = 'prefill' THEN 'apart'
            WHEN output_content_state IN ('full', 'truncated')
                AND coalesce(organisation, tenant_id) IS NOT NULL THEN 'examined'
            ELSE 'missing'
        END AS kind,
        CASE
            WHEN is_partner THEN 'join partner: metadata of a router or gateway'
            WHEN http_response_status_code = 429 THEN 'rate limited, no answer'
            WHEN http_response_status_code >= 400 OR list_contains(gen_ai_response_finish_reasons, 'error')
                OR (error_type IS NOT NULL AND output_content_state = 'absent') THEN 'error, no answer'
            WHEN regexp_matches(coalesce(gen_ai_operation_name, '') || coalesce(endpoint, ''),
                '(?i)embed|rerank|moderation|health|/models|tokenize|image_gen|transcri|speech')
                THEN 'no text generation'
            WHEN disaggregation_role = 'prefill' THEN 'prefill leg, no answer'
            WHEN output_content_state IN ('full', 'truncated')
                AND coalesce(organisation, tenant_id) IS NOT NULL THEN ''
            WHEN output_content_state IN ('full', 'truncated')
                THEN 'no tenant, so nothing is foreign to it (' || source_format || ')'
            WHEN output_content_state = 'absent' THEN 'no answer in the log (' || source_format || ')'
            ELSE 'answer is ' || output_content_state || ' (' || source_format || ')'
        END AS reason
    FROM scanned
    WHERE is_primary
)
SELECT kind, reason, count(*)::BIGINT AS requests FROM judged GROUP BY kind, reason
UNION ALL
-- Such a request's answer may be read, but nobody can tell that its text came out of another's.
SELECT 'no prompt', 'prompt is ' || prompt_state || ', so it can''t be named as a source (' || source_format || ')',
    count(*)::BIGINT
FROM judged
WHERE kind = 'examined' AND prompt_state NOT IN ('full', 'truncated')
GROUP BY prompt_state, source_format
ORDER BY requests DESC, kind, reason

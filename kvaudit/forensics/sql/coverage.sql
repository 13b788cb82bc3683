-- Every request by whether its answer can be examined, and if not, why.
SELECT kind, reason, count(*)::BIGINT AS requests
FROM (
    SELECT
        CASE
            WHEN is_partner THEN 'apart'
            WHEN http_response_status_code >= 400 OR list_contains(gen_ai_response_finish_reasons, 'error')
                OR (error_type IS NOT NULL AND output_content_state = 'absent') THEN 'apart'
            WHEN regexp_matches(coalesce(gen_ai_operation_name, '') || coalesce(endpoint, ''),
                '(?i)embed|rerank|moderation|health|/models|tokenize|image_gen|transcri|speech') THEN 'apart'
            WHEN disaggregation_role = 'prefill' THEN 'apart'
            WHEN output_content_state IN ('full', 'truncated') THEN 'examined'
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
            WHEN output_content_state IN ('full', 'truncated') THEN ''
            WHEN output_content_state = 'absent' THEN 'no answer in the log (' || source_format || ')'
            ELSE 'answer is ' || output_content_state || ' (' || source_format || ')'
        END AS reason
    FROM scanned
    WHERE is_primary
)
GROUP BY kind, reason
ORDER BY requests DESC, kind, reason

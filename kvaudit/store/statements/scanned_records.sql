-- Records of a scanned log by request id, as records of a run; bound: a list of request ids.
SELECT
    coalesce(request_id, record_id) AS request_id, coalesce(tenant_id, '') AS tenant, organisation,
    coalesce(endpoint, '') AS endpoint, coalesce(gen_ai_request_model, gen_ai_response_model, '') AS model,
    input_text, context_text,
    nullif(concat_ws(chr(10), nullif(output_text, ''), nullif(output_reasoning_text, ''), nullif(output_tool_text, '')), '')
        AS output_text, client_prompt_tokens AS prompt_tokens_sent, max_tokens, temperature,
    http_response_status_code AS status, error_type, error_message,
    CASE
        WHEN http_response_status_code = 429 THEN 'rate_limited'
        WHEN http_response_status_code BETWEEN 400 AND 499 THEN 'refused'
        WHEN http_response_status_code >= 500 OR error_type IS NOT NULL THEN 'error'
        WHEN http_response_status_code < 400 OR output_content_state IN ('full', 'truncated') THEN 'answered'
        ELSE 'unknown'
    END AS outcome,
    gen_ai_response_finish_reasons[1] AS finish_reason, gen_ai_usage_input_tokens AS prompt_tokens,
    gen_ai_usage_output_tokens AS completion_tokens, gen_ai_usage_cache_read_input_tokens AS cached_tokens,
    epoch_ns(start_time) AS sent_unix_ns, gen_ai_response_time_to_first_chunk * 1e3 AS ttft_ms,
    epoch_ns(end_time) AS ended_unix_ns, service_instance_id AS replica, gen_ai_response_id AS response_id
FROM scanned
WHERE is_primary AND NOT is_partner AND coalesce(request_id, record_id) IN (SELECT unnest(?::VARCHAR[]))
ORDER BY start_time, record_id;

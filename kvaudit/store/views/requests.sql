-- One row a request, of a live run in the order in which they began; text is shortened unless revealed.
CREATE TEMPORARY VIEW requests AS
SELECT * FROM (
    SELECT
        request_id, tenant, coalesce(organisation, tenant) AS organisation,
        scenario, stratum, "role", block, wave, outcome, status,
        make_timestamp(sent_unix_ns // 1000) AS sent_at,
        round((ended_unix_ns - sent_unix_ns) / 1e6, 3) AS duration_ms,
        ttft_ms, prompt_tokens_sent, prompt_tokens, completion_tokens, cached_tokens, finish_reason,
        model, endpoint, replica, response_id, error_type, shown(error_message) AS error_message,
        shown(array_to_string(list_transform(messages, lambda message: message.content), chr(10))) AS prompt_text,
        shown(output_text) AS output_text
    FROM stored.main.requests
    ORDER BY position
)
UNION ALL
SELECT
    coalesce(request_id, record_id), coalesce(tenant_id, ''), coalesce(organisation, tenant_id, ''),
    '', '', 'observed', 0, 0,
    CASE
        WHEN http_response_status_code = 429 THEN 'rate_limited'
        WHEN http_response_status_code BETWEEN 400 AND 499 THEN 'refused'
        WHEN http_response_status_code >= 500 OR error_type IS NOT NULL THEN 'error'
        WHEN http_response_status_code < 400 OR output_content_state IN ('full', 'truncated') THEN 'answered'
        ELSE 'unknown'
    END,
    http_response_status_code, start_time::TIMESTAMP,
    round((epoch_us(end_time) - epoch_us(start_time)) / 1e3, 3),
    round(gen_ai_response_time_to_first_chunk * 1e3, 3), client_prompt_tokens,
    gen_ai_usage_input_tokens, gen_ai_usage_output_tokens, gen_ai_usage_cache_read_input_tokens,
    gen_ai_response_finish_reasons[1], coalesce(gen_ai_request_model, gen_ai_response_model, ''),
    coalesce(endpoint, ''), service_instance_id, gen_ai_response_id, error_type,
    shown(error_message), shown(input_text), shown(output_text)
FROM scanned
WHERE is_primary AND NOT is_partner;

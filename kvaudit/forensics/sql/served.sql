-- One row a request: the primary rows, with the numbers that the metadata rules weigh.
-- `sent` is the longest count of the prompt that anybody gives; `uncached` what had to be computed.
SELECT
    record_id, coalesce(request_id, record_id) AS request_id, coalesce(tenant_id, '') AS tenant,
    coalesce(organisation, tenant_id, '') AS owner,
    coalesce(gen_ai_response_model, gen_ai_request_model, '') AS model,
    coalesce(service_instance_id, '') AS replica, source_file,
    epoch_us(start_time) AS start_us, epoch_us(end_time) AS end_us,
    gen_ai_response_time_to_first_chunk AS ttft_s,
    http_response_status_code AS status, error_type, error_message,
    gen_ai_usage_input_tokens AS reported, client_prompt_tokens AS counted,
    greatest(gen_ai_usage_input_tokens, client_prompt_tokens) AS sent,
    greatest(0, greatest(gen_ai_usage_input_tokens, client_prompt_tokens)
        - coalesce(gen_ai_usage_cache_read_input_tokens, 0)) AS uncached,
    gen_ai_usage_cache_read_input_tokens AS cached,
    gen_ai_usage_output_tokens AS produced, gen_ai_response_finish_reasons AS finish_reasons,
    input_chars, input_content_state, output_content_state, input_digest, output_digest,
    contains(coalesce(gen_ai_input_messages, ''), '"type": "blob"') AS has_blob,
    disaggregation_role AS leg, bootstrap_room AS room, kv_transfer_bytes AS transfer_bytes,
    response_headers,
    coalesce(http_response_status_code < 400, error_type IS NULL)
        AND NOT list_has_any(coalesce(gen_ai_response_finish_reasons, []), ['error', 'abort'])
        AND NOT is_partner
        AS is_answered,
    coalesce(cache_hit_response, false) AS is_response_cache_hit
FROM scanned
WHERE is_primary

-- One row a record of a scanned log, in the canonical columns; text is shortened unless revealed.
CREATE TEMPORARY VIEW log_rows AS
SELECT
    record_id, source_format, source_file, source_row, source_byte_offset, source_layer,
    is_partner, request_id, correlation_ids, trace_id, span_id, gen_ai_response_id,
    gen_ai_conversation_id, attempt, tenant_id, tenant_id_source, organisation, user_id,
    api_key_hash, client_address, start_time, end_time, gen_ai_response_time_to_first_chunk,
    time_precision_us, time_basis, clock_id, order_key, gen_ai_operation_name,
    gen_ai_provider_name, endpoint, gen_ai_request_model, gen_ai_response_model,
    gen_ai_request_stream, server_address, server_port, service_instance_id, engine_slot,
    cache_salt, lora_name, http_response_status_code, error_type,
    shown(error_message) AS error_message, gen_ai_response_finish_reasons,
    gen_ai_usage_input_tokens, gen_ai_usage_output_tokens, gen_ai_usage_cache_read_input_tokens,
    gen_ai_usage_cache_creation_input_tokens, gen_ai_usage_reasoning_output_tokens,
    client_prompt_tokens, max_tokens, temperature,
    shown(gen_ai_system_instructions) AS gen_ai_system_instructions,
    shown(gen_ai_input_messages) AS gen_ai_input_messages,
    shown(gen_ai_output_messages) AS gen_ai_output_messages, shown(input_text) AS input_text,
    shown(output_text) AS output_text, shown(output_reasoning_text) AS output_reasoning_text,
    shown(output_tool_text) AS output_tool_text, shown(context_text) AS context_text,
    shown(retrieved_items) AS retrieved_items, input_content_state, output_content_state,
    input_gaps, output_gaps, input_raw_map, output_raw_map, input_digest, output_digest,
    input_chars, output_chars, input_block_hashes, input_block_size, cache_hit_response,
    response_headers, sample_rate, disaggregation_role, bootstrap_room, kv_transfer_bytes,
    dedup_group, is_primary
FROM scanned;

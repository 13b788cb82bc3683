-- The columns of all parts that the joins need; no text among them.
SELECT
    parse_filename(filename) AS part, record_id, source_file, source_layer, clock_id, is_partner,
    request_id, correlation_ids, tenant_id, tenant_id_source, organisation,
    gen_ai_conversation_id, start_time, time_basis, order_key, input_digest, output_digest
FROM read_parquet([$parts], filename = true)

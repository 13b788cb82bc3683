-- The rows of all groups, group by group, with what decides who is primary and what is filled in.
SELECT
    labels.label, narrow.part, narrow.record_id, narrow.source_file, narrow.source_layer,
    narrow.clock_id, narrow.is_partner, narrow.request_id, narrow.tenant_id,
    narrow.tenant_id_source, narrow.organisation, narrow.gen_ai_conversation_id AS conversation_id,
    epoch_us(narrow.start_time) AS start_us, narrow.time_basis, narrow.order_key,
    narrow.input_digest, narrow.output_digest
FROM labels JOIN narrow USING (record_id)
ORDER BY labels.label, narrow.source_file, narrow.order_key, narrow.record_id

-- One id alive at the same time for two different bodies.
SELECT
    a.request_id, a.tenant, a.record_id, b.record_id AS other_record_id, b.tenant AS other_tenant,
    a.start_us, b.start_us AS other_start_us
FROM served AS a JOIN served AS b
    ON a.request_id = b.request_id AND a.record_id < b.record_id
    AND a.input_digest <> b.input_digest
    AND a.start_us <= coalesce(b.end_us, b.start_us) AND b.start_us <= coalesce(a.end_us, a.start_us)
ORDER BY a.start_us, a.request_id

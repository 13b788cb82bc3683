-- Requests whose retrieved items name their owner.
SELECT
    coalesce(request_id, record_id) AS request_id, coalesce(tenant_id, '') AS tenant,
    coalesce(organisation, tenant_id, '') AS owner, record_id,
    epoch_us(start_time) AS start_us, retrieved_items, output_text
FROM scanned
WHERE is_primary AND retrieved_items IS NOT NULL
ORDER BY start_time, request_id

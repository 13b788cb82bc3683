-- Every request id of a scanned log.
SELECT DISTINCT coalesce(request_id, record_id) AS request_id FROM scanned WHERE is_primary AND NOT is_partner;

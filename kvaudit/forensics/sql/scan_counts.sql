-- What the table holds, by kind.
SELECT
    count(*) AS records,
    count(*) FILTER (is_primary AND NOT is_partner) AS requests,
    count(*) FILTER (NOT is_primary) AS folded_records,
    count(*) FILTER (is_primary AND is_partner) AS partners_alone,
    count(*) FILTER (is_primary AND tenant_id IS NULL) AS without_tenant,
    count(DISTINCT tenant_id) AS tenants,
    count(DISTINCT coalesce(organisation, tenant_id)) AS organisations,
    count(*) FILTER (is_primary AND http_response_status_code >= 400) AS errors,
    count(*) FILTER (is_primary AND http_response_status_code = 429) AS rate_limited
FROM scanned

-- Cache hits on a prefix that this owner had not sent before on this replica.
-- The prefix is compared at a power of four characters that the hit surely covers.
WITH hits AS (
    SELECT
        coalesce(request_id, record_id) AS request_id, record_id, coalesce(tenant_id, '') AS tenant,
        coalesce(organisation, tenant_id, '') AS owner, coalesce(service_instance_id, '') AS replica,
        coalesce(gen_ai_response_model, gen_ai_request_model, '') AS model, cache_salt,
        epoch_us(start_time) AS start_us, gen_ai_usage_cache_read_input_tokens AS cached,
        input_text, input_chars
    FROM scanned
    WHERE is_primary AND input_text IS NOT NULL AND start_time IS NOT NULL
        AND input_content_state = 'full' AND coalesce(tenant_id, organisation) IS NOT NULL
        AND NOT coalesce(cache_hit_response, false)
),
sized AS (
    SELECT *, unnest([256, 1024, 4096, 16384, 65536]) AS chars FROM hits
),
prefixes AS (
    SELECT * EXCLUDE (input_text), hash(left(input_text, chars)) AS prefix
    FROM sized
    WHERE input_chars >= chars
),
firsts AS (
    SELECT
        model, replica, owner, chars, prefix, min(start_us) AS first_us,
        arg_min(request_id, start_us) AS first_request_id, arg_min(tenant, start_us) AS first_tenant
    FROM prefixes
    GROUP BY ALL
),
owners AS (
    SELECT
        model, replica, chars, prefix, count(*) AS owners, min(first_us) AS first_us,
        arg_min(first_request_id, first_us) AS source_request_id,
        arg_min(first_tenant, first_us) AS source_tenant
    FROM firsts
    GROUP BY ALL
)
SELECT
    prefixes.request_id, prefixes.record_id, prefixes.tenant, prefixes.cached, prefixes.chars,
    prefixes.start_us, owners.owners, owners.first_us < prefixes.start_us AS sent_by_another,
    owners.source_request_id, owners.source_tenant
FROM prefixes
JOIN firsts USING (model, replica, owner, chars, prefix)
JOIN owners USING (model, replica, chars, prefix)
WHERE prefixes.cached >= $cached_min
    AND prefixes.chars <= prefixes.cached * $chars_per_token
    AND firsts.first_us = prefixes.start_us
    AND owners.owners < $template_owners
QUALIFY row_number() OVER (PARTITION BY prefixes.record_id ORDER BY prefixes.chars DESC) = 1
ORDER BY prefixes.start_us, prefixes.request_id

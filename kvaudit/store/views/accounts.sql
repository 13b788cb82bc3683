-- Evidence of the rules that weigh numbers, above and below their threshold, with the numbers.
CREATE TEMPORARY VIEW accounts AS
SELECT
    rule_id, passed, sink_request_id AS request_id, sink_tenant AS tenant,
    make_timestamp(json_extract(details, '$.start_us')::BIGINT) AS started_at, score,
    json_extract(details, '$.prompt_tokens')::BIGINT AS prompt_tokens,
    json_extract(details, '$.client_prompt_tokens')::BIGINT AS client_prompt_tokens,
    json_extract(details, '$.capacity_tokens')::BIGINT AS capacity_tokens,
    json_extract(details, '$.uncached_tokens')::BIGINT AS uncached_tokens,
    json_extract(details, '$.cached_tokens')::BIGINT AS cached_tokens,
    json_extract(details, '$.ttft_s')::DOUBLE AS ttft_s,
    json_extract(details, '$.expected_ttft_s')::DOUBLE AS expected_ttft_s,
    json_extract(details, '$.prefill_prompt_tokens')::BIGINT AS prefill_prompt_tokens,
    json_extract(details, '$.decode_prompt_tokens')::BIGINT AS decode_prompt_tokens,
    json_extract(details, '$.transferred_bytes')::BIGINT AS transferred_bytes,
    json_extract_string(details, '$.explained_by') AS explained_by,
    source_tenant, source_request_id
FROM (
    SELECT rule_id, true AS passed, sink_request_id, sink_tenant, score, details,
        source.tenant AS source_tenant, source.request_id AS source_request_id
    FROM stored.main.findings
    UNION ALL
    SELECT rule_id, false, sink_request_id, sink_tenant, score, details,
        source.tenant, source.request_id
    FROM stored.main.candidates
)
WHERE rule_id BETWEEN 'KVA300' AND 'KVA399';

-- How much of each source can be examined: answers, tenants, times?
SELECT
    source_file, source_format, count(*) AS records,
    count(*) FILTER (is_primary AND NOT is_partner) AS requests,
    count(*) FILTER (NOT is_primary) AS folded,
    count(*) FILTER (is_partner) AS join_partners,
    count(*) FILTER (output_content_state IN ('full', 'truncated')) AS with_answer,
    count(*) FILTER (input_content_state IN ('full', 'truncated')) AS with_prompt,
    count(*) FILTER (tenant_id IS NOT NULL) AS with_tenant,
    count(*) FILTER (start_time IS NOT NULL) AS with_time,
    min(start_time) AS first_at, max(start_time) AS last_at
FROM log_rows
GROUP BY source_file, source_format
ORDER BY records DESC, source_file;

-- What happened, in order: requests sent and ended, sinks of findings at the end of their answer, notes.
CREATE TEMPORARY VIEW timeline AS
WITH held AS (
    SELECT sent_unix_ns, ended_unix_ns, position, request_id, tenant, stratum, outcome, finish_reason, error_type
    FROM stored.main.requests
    UNION ALL
    SELECT
        epoch_ns(start_time), epoch_ns(end_time), order_key, coalesce(request_id, record_id),
        coalesce(tenant_id, ''), service_instance_id,
        CASE WHEN http_response_status_code >= 400 THEN 'refused' ELSE 'answered' END,
        gen_ai_response_finish_reasons[1], error_type
    FROM scanned
    WHERE is_primary AND NOT is_partner
)
SELECT make_timestamp(at_unix_ns // 1000) AS at, event, request_id, tenant, detail
FROM (
    SELECT sent_unix_ns AS at_unix_ns, 1 AS step, position, 'sent' AS event, request_id, tenant, stratum AS detail
    FROM held WHERE sent_unix_ns IS NOT NULL
    UNION ALL
    SELECT ended_unix_ns, 2, position, outcome, request_id, tenant, coalesce(finish_reason, error_type)
    FROM held WHERE ended_unix_ns IS NOT NULL
    UNION ALL
    SELECT coalesce(sink.ended_unix_ns, sink.sent_unix_ns), 3, finding.position, finding.kind,
        finding.sink_request_id, finding.sink_tenant,
        concat_ws(' ', finding.rule_id, 'from', finding.source.tenant, finding.source.request_id)
    FROM stored.main.findings AS finding
    JOIN held AS sink
        ON sink.request_id = finding.sink_request_id AND sink.tenant = finding.sink_tenant
    WHERE sink.sent_unix_ns IS NOT NULL
    UNION ALL
    SELECT note.at_unix_ns, 4, 0, note.name, NULL, NULL, note.text
    FROM (SELECT unnest(notes) AS note FROM stored.main.run)
)
ORDER BY at_unix_ns, step, position;

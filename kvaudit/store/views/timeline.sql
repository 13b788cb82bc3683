-- What happened, in order: requests sent and ended, sinks of findings at the end of their answer, notes.
CREATE TEMPORARY VIEW timeline AS
SELECT make_timestamp(at_unix_ns // 1000) AS at, event, request_id, tenant, detail
FROM (
    SELECT sent_unix_ns AS at_unix_ns, 1 AS step, position, 'sent' AS event, request_id, tenant, stratum AS detail
    FROM stored.main.requests WHERE sent_unix_ns IS NOT NULL
    UNION ALL
    SELECT ended_unix_ns, 2, position, outcome, request_id, tenant, coalesce(finish_reason, error_type)
    FROM stored.main.requests WHERE ended_unix_ns IS NOT NULL
    UNION ALL
    SELECT sink.ended_unix_ns, 3, finding.position, finding.kind, finding.sink_request_id, finding.sink_tenant,
        concat_ws(' ', finding.rule_id, 'from', finding.source.tenant, finding.source.request_id)
    FROM stored.main.findings AS finding
    JOIN stored.main.requests AS sink ON sink.request_id = finding.sink_request_id
    WHERE sink.ended_unix_ns IS NOT NULL
    UNION ALL
    SELECT note.at_unix_ns, 4, 0, note.name, NULL, NULL, note.text
    FROM (SELECT unnest(notes) AS note FROM stored.main.run)
)
ORDER BY at_unix_ns, step, position;

-- Whose text went where and when: findings of kind exposure or misdelivery with both requests.
CREATE TEMPORARY VIEW exposures AS
SELECT
    finding.rule_id, finding.kind, finding.severity,
    finding.source.tenant AS source_tenant, finding.source.request_id AS source_request_id,
    finding.source.side AS source_side, make_timestamp(origin.sent_unix_ns // 1000) AS source_sent_at,
    finding.sink_tenant, finding.sink_request_id, make_timestamp(sink.sent_unix_ns // 1000) AS sink_sent_at,
    round((sink.sent_unix_ns - origin.sent_unix_ns) / 1e9, 3) AS seconds_between,
    sink.scenario, sink.stratum, sink.replica,
    shown(finding.excerpt) AS excerpt, finding.score, finding.chance, finding.q_value
FROM stored.main.findings AS finding
LEFT JOIN stored.main.requests AS sink ON sink.request_id = finding.sink_request_id
LEFT JOIN stored.main.requests AS origin ON origin.request_id = finding.source.request_id
WHERE finding.kind IN ('exposure', 'misdelivery')
ORDER BY finding.position;

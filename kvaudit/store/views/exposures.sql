-- Whose text went where and when: findings of kind exposure or misdelivery with both requests.
CREATE TEMPORARY VIEW exposures AS
SELECT
    finding.rule_id, finding.kind, finding.severity,
    finding.source.tenant AS source_tenant, finding.source.request_id AS source_request_id,
    finding.source.side AS source_side, origin.sent_at AS source_sent_at,
    finding.sink_tenant, finding.sink_request_id, sink.sent_at AS sink_sent_at,
    round((epoch_us(sink.sent_at) - epoch_us(origin.sent_at)) / 1e6, 3) AS seconds_between,
    sink.scenario, sink.stratum, sink.replica,
    shown(finding.excerpt) AS excerpt, finding.score, finding.chance, finding.q_value,
    json_extract(finding.details, '$.incident')::BIGINT AS incident
FROM stored.main.findings AS finding
LEFT JOIN requests AS sink
    ON sink.request_id = finding.sink_request_id AND sink.tenant = finding.sink_tenant
LEFT JOIN requests AS origin
    ON origin.request_id = finding.source.request_id AND origin.tenant = finding.source.tenant
WHERE finding.kind IN ('exposure', 'misdelivery')
ORDER BY finding.position;

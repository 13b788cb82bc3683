-- One row a finding, as in the report; text is shortened unless revealed.
CREATE TEMPORARY VIEW findings AS
SELECT
    rule_id, kind, severity, sink_request_id, sink_tenant,
    source.request_id AS source_request_id, source.tenant AS source_tenant, source.side AS source_side,
    shown(excerpt) AS excerpt, score, chance, q_value
FROM stored.main.findings
ORDER BY position;

-- Ranked evidence below its rule's threshold; text is shortened unless revealed.
CREATE TEMPORARY VIEW candidates AS
SELECT
    rule_id, sink_request_id, sink_tenant,
    source.request_id AS source_request_id, source.tenant AS source_tenant, source.side AS source_side,
    shown(excerpt) AS excerpt, score, chance
FROM stored.main.candidates
ORDER BY position;

-- From which tenant to which, in how many answers: one row a source, all its receivers in it?
SELECT
    source_tenant, sum(answers)::BIGINT AS answers,
    string_agg(sink_tenant || ': ' || answers, ', ' ORDER BY answers DESC, sink_tenant) AS receivers
FROM (
    SELECT source_tenant, sink_tenant, count(DISTINCT sink_request_id) AS answers
    FROM exposures
    WHERE source_tenant IS NOT NULL
    GROUP BY source_tenant, sink_tenant
)
GROUP BY source_tenant
ORDER BY answers DESC, source_tenant;

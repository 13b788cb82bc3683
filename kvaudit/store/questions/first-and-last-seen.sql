-- When did each rule fire first and last, and on whom?
SELECT
    findings.rule_id, count(DISTINCT findings.sink_request_id) AS requests,
    count(DISTINCT findings.sink_tenant) AS tenants,
    min(requests.sent_at) AS first_at, arg_min(findings.sink_request_id, requests.sent_at) AS first_request,
    max(requests.sent_at) AS last_at, arg_max(findings.sink_request_id, requests.sent_at) AS last_request
FROM findings LEFT JOIN requests
    ON requests.request_id = findings.sink_request_id AND requests.tenant = findings.sink_tenant
GROUP BY findings.rule_id
ORDER BY first_at, findings.rule_id;

-- How many requests did each rule fire on, above and below its threshold?
SELECT rule_id, count(DISTINCT sink_request_id) FILTER (passed) AS findings,
    count(DISTINCT sink_request_id) FILTER (NOT passed) AS candidates
FROM (
    SELECT rule_id, sink_request_id, true AS passed FROM findings
    UNION ALL
    SELECT rule_id, sink_request_id, false FROM candidates
)
GROUP BY rule_id
ORDER BY rule_id;

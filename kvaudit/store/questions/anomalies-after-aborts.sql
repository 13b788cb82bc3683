-- Do findings come more often in the minute after an abort or an error on the same replica?
WITH ended AS (
    SELECT request_id, replica, sent_at,
        outcome IN ('error', 'unknown') OR finish_reason = 'abort' AS is_abort
    FROM requests
    WHERE sent_at IS NOT NULL
),
aborts AS (
    SELECT coalesce(replica, '') AS replica, sent_at FROM ended WHERE is_abort
),
marked AS (
    SELECT
        ended.request_id, aborts.sent_at IS NOT NULL AND ended.sent_at - aborts.sent_at <= INTERVAL 60 SECOND
            AS is_after_abort
    FROM ended ASOF LEFT JOIN aborts
        ON coalesce(ended.replica, '') = aborts.replica AND ended.sent_at > aborts.sent_at
    WHERE NOT ended.is_abort
)
SELECT
    is_after_abort, count(*) AS requests,
    count(*) FILTER (request_id IN (SELECT sink_request_id FROM findings)) AS with_findings,
    round(with_findings / requests, 6) AS rate
FROM marked
GROUP BY is_after_abort
ORDER BY is_after_abort;

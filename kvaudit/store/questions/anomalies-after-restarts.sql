-- Do findings come more often in the ten minutes after a replica was silent for ten minutes or more?
WITH ordered AS (
    SELECT request_id, coalesce(replica, '') AS replica, sent_at,
        sent_at - lag(sent_at) OVER (PARTITION BY coalesce(replica, '') ORDER BY sent_at) AS silence
    FROM requests
    WHERE sent_at IS NOT NULL
),
starts AS (
    SELECT replica, sent_at FROM ordered WHERE silence >= INTERVAL 10 MINUTE OR silence IS NULL
)
SELECT
    ordered.sent_at - starts.sent_at <= INTERVAL 10 MINUTE AS is_after_restart, count(*) AS requests,
    count(*) FILTER (request_id IN (SELECT sink_request_id FROM findings)) AS with_findings,
    round(with_findings / requests, 6) AS rate
FROM ordered ASOF JOIN starts ON ordered.replica = starts.replica AND ordered.sent_at >= starts.sent_at
GROUP BY is_after_restart
ORDER BY is_after_restart;

-- How does the mix of finish reasons change, model by model and hour by hour?
WITH counted AS (
    SELECT model, date_trunc('hour', sent_at) AS hour, coalesce(finish_reason, outcome) AS finish_reason,
        count(*) AS requests
    FROM requests
    GROUP BY ALL
),
shared AS (
    SELECT *, requests / sum(requests) OVER (PARTITION BY model, hour) AS share,
        sum(requests) OVER (PARTITION BY model, finish_reason) / sum(requests) OVER (PARTITION BY model)
            AS usual_share
    FROM counted
)
SELECT model, hour, finish_reason, requests, round(share, 4) AS share, round(usual_share, 4) AS usual_share,
    round(share - usual_share, 4) AS drift
FROM shared
ORDER BY abs(share - usual_share) DESC, model, hour, finish_reason;

-- KV bytes moved for each request: its own, or those of the other leg of its room.
WITH moved AS (
    SELECT room, max(transfer_bytes) AS transfer_bytes, min(request_id) AS prefill_request_id
    FROM served
    WHERE room IS NOT NULL AND transfer_bytes IS NOT NULL
    GROUP BY room
),
sized AS (
    SELECT
        served.*, coalesce(moved.transfer_bytes, served.transfer_bytes) AS bytes,
        moved.prefill_request_id, greatest(0, served.sent - coalesce(served.cached, 0)) AS tokens
    FROM served LEFT JOIN moved USING (room)
    WHERE coalesce(moved.transfer_bytes, served.transfer_bytes) IS NOT NULL AND served.sent > 0
),
rates AS (
    SELECT model, median(bytes / tokens) AS bytes_per_token, count(*) AS requests
    FROM sized
    WHERE tokens >= $rate_tokens_min
    GROUP BY model
)
SELECT sized.*, rates.bytes_per_token, rates.requests AS rate_requests
FROM sized JOIN rates USING (model)
WHERE rates.requests >= $rate_requests_min
    AND coalesce(sized.leg, 'decode') <> 'prefill'
    AND sized.is_answered
    AND sized.bytes < rates.bytes_per_token * (sized.tokens * $share - $slack_tokens)
ORDER BY sized.start_us, sized.request_id

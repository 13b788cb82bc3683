-- Prefill and decode legs of one request, paired by their room, that disagree on its length.
WITH legs AS (
    SELECT *, greatest(reported, 0) AS length,
        coalesce(leg, CASE WHEN produced <= 1 THEN 'prefill' ELSE 'decode' END) AS side
    FROM served
    WHERE room IS NOT NULL AND reported IS NOT NULL
)
SELECT
    decode.*, prefill.request_id AS prefill_request_id, prefill.length AS prefill_length,
    decode.length AS decode_length
FROM legs AS decode JOIN legs AS prefill
    ON decode.room = prefill.room AND decode.side = 'decode' AND prefill.side = 'prefill'
    AND decode.record_id <> prefill.record_id
    AND abs(coalesce(decode.start_us, 0) - coalesce(prefill.start_us, 0)) <= $room_us_max
WHERE decode.length <> prefill.length
    AND NOT list_has_any(coalesce(decode.finish_reasons, []), ['error', 'abort'])
ORDER BY decode.start_us, decode.request_id

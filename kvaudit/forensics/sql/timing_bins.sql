-- First-token times of answered requests by model, replica and half-octave of uncached length.
SELECT
    model, replica, floor(2 * log2(uncached))::INTEGER AS bin, count(*) AS requests,
    median(ttft_s) AS ttft_s, median(uncached) AS tokens
FROM served
WHERE is_answered AND NOT is_response_cache_hit AND ttft_s > 0 AND uncached >= 1
GROUP BY ALL
ORDER BY ALL

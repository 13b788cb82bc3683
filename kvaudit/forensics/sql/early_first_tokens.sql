-- Answers whose first token came in less than a share of the time that their uncached prompt takes.
-- Where a replica tells no cached tokens and many of its long prompts come early, its cache may.
WITH timed AS (
    SELECT
        served.*, fits.source AS fit_source, fits.requests AS fit_requests,
        greatest(fits.base_s, fits.s_per_token * served.uncached) AS expected_s,
        ttft_s < $share * greatest(fits.base_s, fits.s_per_token * served.uncached) AS is_early
    FROM served JOIN fits USING (model, replica)
    WHERE is_answered AND NOT is_response_cache_hit AND NOT coalesce(is_repeat, false)
        AND ttft_s >= 0 AND uncached >= $tokens_min
)
SELECT
    *, cached IS NULL AND count(*) FILTER (is_early AND cached IS NULL) OVER replicas
        >= greatest($untold_min, $untold_share * count(*) FILTER (cached IS NULL) OVER replicas)
        AS may_be_cached
FROM timed
WINDOW replicas AS (PARTITION BY model, replica)
QUALIFY is_early
ORDER BY start_us, request_id

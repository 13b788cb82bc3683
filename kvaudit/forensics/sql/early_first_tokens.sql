-- Answers whose first token came in less than a share of the time that their uncached prompt takes.
SELECT
    served.*, fits.source AS fit_source, fits.requests AS fit_requests,
    greatest(fits.base_s, fits.s_per_token * served.uncached) AS expected_s
FROM served JOIN fits USING (model, replica)
WHERE is_answered AND NOT is_response_cache_hit AND NOT coalesce(is_repeat, false)
    AND ttft_s >= 0 AND uncached >= $tokens_min
    AND ttft_s < $share * greatest(fits.base_s, fits.s_per_token * served.uncached)
ORDER BY start_us, request_id

-- Answers to prompts longer than the capacity that was in force on their replica at that time.
WITH over AS (
    SELECT served.*, capacities.tokens AS capacity, capacities.source AS capacity_source
    FROM served ASOF JOIN capacities
        ON served.model = capacities.model AND served.replica = capacities.replica
        AND coalesce(served.start_us, 0) >= capacities.from_us
    WHERE served.is_answered AND NOT served.is_response_cache_hit AND served.sent > capacities.tokens
)
SELECT
    over.*, greatest(fits.base_s, fits.s_per_token * over.uncached) AS expected_s,
    over.ttft_s >= $share * greatest(fits.base_s, fits.s_per_token * over.uncached) AS read_in_full,
    over.reported <= over.capacity AND over.reported >= over.capacity / 4 AS shows_cut
FROM over LEFT JOIN fits ON over.model = fits.model AND over.replica = fits.replica
ORDER BY over.start_us, over.request_id

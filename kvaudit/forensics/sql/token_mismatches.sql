-- Prompt tokens that the server reports, far from the client's count, or from what the text can be.
WITH ratios AS (
    SELECT model, median(reported / counted) AS usual
    FROM served
    WHERE is_answered AND reported > 0 AND counted >= 20
    GROUP BY model
),
constant AS (
    -- One reported length for prompts of several different lengths: the server cuts them there.
    SELECT model, reported
    FROM served
    WHERE is_answered AND reported > 5 AND counted > 2 * reported
    GROUP BY model, reported
    HAVING count(DISTINCT counted) >= 3
)
SELECT
    served.*, coalesce(ratios.usual, 1.0) AS usual_ratio,
    constant.reported IS NOT NULL AS is_constant,
    counted IS NULL AS is_by_text
FROM served
LEFT JOIN ratios USING (model)
LEFT JOIN constant ON served.model = constant.model AND served.reported = constant.reported
WHERE is_answered AND NOT is_response_cache_hit AND NOT has_blob AND served.reported IS NOT NULL
    AND (
        (counted >= $counted_min AND served.reported <= $tokens_tiny)
        OR (counted >= $counted_min
            AND served.reported < $ratio_min * counted * least(1.0, coalesce(ratios.usual, 1.0)))
        OR (counted >= 20
            AND served.reported > $ratio_max * counted * greatest(1.0, coalesce(ratios.usual, 1.0))
                + $overhead_tokens)
        OR (counted IS NULL AND input_chars >= $chars_per_token * (served.reported + $slack_tokens))
    )
ORDER BY start_us, served.request_id

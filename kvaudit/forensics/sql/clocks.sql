-- Every clock, how its log tells time (a log that tells it both ways counts as the vaguer), and one time.
SELECT
    source_file, clock_id,
    CASE
        WHEN bool_or(time_basis = 'relative') THEN 'relative'
        WHEN bool_or(time_basis = 'naive') THEN 'naive'
        WHEN bool_or(time_basis = 'absolute') THEN 'absolute'
        WHEN bool_or(time_basis = 'inferred') THEN 'inferred'
        ELSE 'none'
    END AS basis,
    epoch_us(min(start_time)) AS first_us
FROM narrow
GROUP BY source_file, clock_id
ORDER BY source_file, clock_id

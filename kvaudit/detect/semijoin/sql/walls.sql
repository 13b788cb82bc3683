-- Walls of the answers that have seeds.
SELECT place
FROM judged
WHERE is_wall AND rank IN (SELECT place >> 32 FROM seeds)

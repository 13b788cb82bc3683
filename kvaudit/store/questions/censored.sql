-- How many requests of each stratum ended without an examinable outcome, and how?
SELECT
    stratum, count(*) AS requests,
    count(*) FILTER (outcome NOT IN ('answered', 'refused')) AS censored,
    list(DISTINCT outcome ORDER BY outcome) AS outcomes
FROM requests
GROUP BY stratum
ORDER BY censored DESC, stratum;

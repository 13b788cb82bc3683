-- The texts that hold a seed, one for each organisation and side.
SELECT h, organisation, place
FROM holders
WHERE h IN (SELECT h FROM seeds)

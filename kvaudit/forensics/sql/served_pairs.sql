-- Every model and replica that served a request.
SELECT DISTINCT model, replica FROM served ORDER BY ALL

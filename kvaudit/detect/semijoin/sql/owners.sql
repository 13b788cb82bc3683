-- The same, both sides in one row and without regard to replicas.
CREATE TABLE owners AS
SELECT
    h, organisation,
    min(place) FILTER (NOT is_answer) AS context_place,
    min(place) FILTER (is_answer) AS answer_place
FROM holders
GROUP BY ALL

-- The first place of a gram, and the first one of another organisation than that; for each
-- replica that a source may be on (one for all, unless replicas are told apart).
CREATE TABLE firsts AS
WITH reached AS (
    SELECT
        h, organisation, place,
        unnest(CASE WHEN $use_replicas THEN [replica, -2] ELSE [-2] END) AS reach
    FROM holders
),
earliest AS (
    SELECT h, reach, min(place) AS place, arg_min(organisation, place) AS organisation
    FROM reached
    GROUP BY h, reach
)
SELECT
    h, reach, earliest.place, earliest.organisation,
    min(reached.place) FILTER (reached.organisation <> earliest.organisation) AS other_place
FROM reached
JOIN earliest USING (h, reach)
GROUP BY ALL

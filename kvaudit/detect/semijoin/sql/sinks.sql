-- Each gram of an answer with the first place of another organisation that holds it.
CREATE TABLE sinks AS
WITH asked AS (
    SELECT
        answers.h, answers.place, answers.is_wall, ranks.rank, ranks.organisation,
        ranks.stop_rank,
        unnest(
            CASE WHEN $use_replicas AND ranks.replica >= 0 THEN [ranks.replica, -1] ELSE [-2] END
        ) AS reach
    FROM answers
    JOIN ranks ON ranks.rank = (answers.place >> 32)
),
answered AS (
    SELECT
        asked.*,
        CASE WHEN firsts.organisation <> asked.organisation THEN firsts.place
            ELSE firsts.other_place END AS source_place
    FROM asked
    LEFT JOIN firsts USING (h, reach)
)
SELECT
    h, place, is_wall, rank, organisation, stop_rank, min(source_place) AS source_place,
    (min(source_place) >> 32)::BIGINT AS source_rank
FROM answered
GROUP BY ALL

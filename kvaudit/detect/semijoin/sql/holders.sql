-- The first place where each organisation's contexts, and its answers, hold a gram.
CREATE TABLE holders AS
WITH texts AS (
    SELECT h, place FROM contexts
    UNION ALL
    SELECT h, place FROM answers
)
SELECT texts.h, ranks.organisation, ranks.is_answer, ranks.replica, min(texts.place) AS place
FROM texts
JOIN ranks ON ranks.rank = (texts.place >> 32)
GROUP BY ALL

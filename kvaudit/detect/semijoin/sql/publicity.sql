-- How many organisations' prompts held a gram before any answer given to them did, and how many
-- had it in an answer. Who got it in an answer and sends it on is a victim, never background.
CREATE TABLE publicity AS
SELECT
    h,
    count(*) FILTER (context_place < coalesce(answer_place, 18446744073709551615)) AS prompts,
    count(answer_place) AS answers
FROM owners
GROUP BY h

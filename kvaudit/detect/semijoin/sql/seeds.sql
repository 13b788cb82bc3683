-- Seeds: a gram of a sink and the same gram in its first foreign text. A context that began after
-- the sink had ended makes a decoy; two answers make a pair once, from the earlier to the later.
CREATE TABLE seeds AS
SELECT
    h, place, source_place, prompts, answers,
    NOT source_is_answer AND source_rank >= stop_rank AND source_rank < $unknown_from AS is_decoy
FROM judged
WHERE NOT is_wall AND source_place IS NOT NULL AND (NOT source_is_answer OR source_rank < rank)

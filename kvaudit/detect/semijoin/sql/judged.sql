-- Is a gram a seed, or a wall: text that the own organisation held, or that is nobody's?
CREATE TABLE judged AS
SELECT
    sinks.h, sinks.place, sinks.rank, sinks.source_place, sinks.stop_rank, sinks.source_rank,
    source.is_answer AS source_is_answer, publicity.prompts, publicity.answers,
    sinks.is_wall
    OR publicity.prompts >= $background_organisations
    OR coalesce((owners.context_place >> 32) < sinks.stop_rank, false)
    OR coalesce((owners.context_place >> 32) >= $unknown_from, false)
    OR coalesce(
        (owners.answer_place >> 32) < sinks.rank
        AND (owners.answer_place >> 32) < coalesce(sinks.source_rank, 9223372036854775807),
        false
    ) AS is_wall
FROM sinks
JOIN publicity USING (h)
LEFT JOIN owners ON owners.h = sinks.h AND owners.organisation = sinks.organisation
LEFT JOIN ranks AS source ON source.rank = sinks.source_rank

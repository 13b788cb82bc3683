-- All seeds, to be written.
SELECT h, place, source_place, prompts, answers, is_decoy FROM seeds

-- What an answer scores under its own prompt, for the replay gap.
ALTER TABLE requests ADD COLUMN replay_logprobs DOUBLE[];
ALTER TABLE requests ADD COLUMN replay_reason VARCHAR;
COMMENT ON COLUMN requests.replay_logprobs IS 'Log-probability of each emitted token under the prompt really sent, taken again past every cache, in nat.';
COMMENT ON COLUMN requests.replay_reason IS 'Why there is no replay; null where it was done or never tried.';

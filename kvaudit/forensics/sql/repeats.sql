-- Requests whose prompt and answer both stood in the log before: a response cache that did not say so.
SELECT record_id
FROM served_rows
WHERE input_digest IS NOT NULL AND output_digest IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY input_digest, output_digest ORDER BY start_us, record_id) > 1

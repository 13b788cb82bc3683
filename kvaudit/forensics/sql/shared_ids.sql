-- Rows that may be one request seen twice: those that share an id, at most $rows_max of them
-- (an id that many rows carry is a session or a trace of many calls, not a request).
WITH named AS (
    SELECT
        record_id, source_file, start_time,
        unnest(list_distinct(list_append(
            correlation_ids, regexp_replace(request_id, '^(chatcmpl-|cmpl-|resp_|batch_req_)', '')
        ))) AS id
    FROM narrow
),
shared AS (
    SELECT id
    FROM named
    WHERE id IS NOT NULL AND length(id) >= $id_chars_min
    GROUP BY id
    HAVING count(*) BETWEEN 2 AND $rows_max
),
-- The same prompt and the same answer at two layers, close in time, without a common id.
twins AS (
    SELECT 'digest:' || input_digest || output_digest AS id
    FROM narrow
    WHERE input_digest IS NOT NULL AND output_digest IS NOT NULL
    GROUP BY input_digest, output_digest
    HAVING count(*) BETWEEN 2 AND $rows_max
        AND count(DISTINCT source_file) = count(*)
        AND count(DISTINCT source_layer) = count(*)
        AND max(epoch_us(start_time)) - min(epoch_us(start_time)) <= $twin_us_max
)
SELECT named.id, named.record_id
FROM named JOIN shared USING (id)
UNION ALL
SELECT twins.id, narrow.record_id
FROM narrow JOIN twins ON twins.id = 'digest:' || narrow.input_digest || narrow.output_digest

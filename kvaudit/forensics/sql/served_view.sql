-- The requests, with a mark on those whose prompt and answer stood in the log before.
CREATE VIEW served AS
SELECT served_rows.*, repeats.record_id IS NOT NULL AS is_repeat
FROM served_rows LEFT JOIN repeats USING (record_id)

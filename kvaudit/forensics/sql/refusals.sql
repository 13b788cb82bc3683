-- Refusals, with the length that was refused and what the server said.
SELECT model, replica, start_us, sent, error_type, error_message
FROM served
WHERE status BETWEEN 400 AND 599 AND status <> 429
    AND (sent IS NOT NULL OR error_message IS NOT NULL)
ORDER BY start_us, request_id

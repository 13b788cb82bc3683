-- One round of label propagation: a row takes the least label among the rows it shares an id with.
WITH of_id AS (
    SELECT links.id, min(labels.label) AS label
    FROM links JOIN labels USING (record_id)
    GROUP BY links.id
)
SELECT links.record_id, min(of_id.label) AS label
FROM links JOIN of_id USING (id)
GROUP BY links.record_id

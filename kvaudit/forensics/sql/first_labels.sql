-- Before the first round every linked row is its own group.
SELECT DISTINCT record_id, record_id AS label FROM links

-- How many rows the last round moved to another group.
SELECT count(*) FROM labels JOIN next_labels USING (record_id) WHERE labels.label <> next_labels.label

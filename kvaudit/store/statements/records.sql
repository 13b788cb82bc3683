-- Every record, in the order in which the requests began.
SELECT * EXCLUDE (position) FROM stored.main.requests ORDER BY position;

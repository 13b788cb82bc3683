-- The last migration that a run file has gone through.
SELECT coalesce(max(number), 0) AS number FROM stored.main.migrations;

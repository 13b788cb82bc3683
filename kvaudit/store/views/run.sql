-- One row: the run itself.
CREATE TEMPORARY VIEW run AS
SELECT
    run_id, command, version, seed, verdict, reasons, repeat,
    make_timestamp(started_unix_ns // 1000) AS started_at, make_timestamp(ended_unix_ns // 1000) AS ended_at,
    target, config, counts, not_examinable, damaged_lines
FROM stored.main.run;

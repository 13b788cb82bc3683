-- One row a rule: how it did in this run.
CREATE TEMPORARY VIEW oracles AS SELECT * FROM stored.main.oracles;

-- One row a stratum: an exact upper bound on its leak rate.
CREATE TEMPORARY VIEW bounds AS SELECT * FROM stored.main.bounds;

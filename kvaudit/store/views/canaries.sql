-- One row a minted canary; synthetic, so shown whole.
CREATE TEMPORARY VIEW canaries AS SELECT * FROM stored.main.canaries;

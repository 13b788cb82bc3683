"""The files that the steps leave for each other."""

CONTEXTS, ANSWERS = "contexts", "answers"  # from the scan, numbered
LENGTHS = "lengths.parquet"
RANKS = "ranks.parquet"  # from the join, as all below
SEEDS = "seeds.parquet"
WALLS = "walls.parquet"
HELD = "held.parquet"

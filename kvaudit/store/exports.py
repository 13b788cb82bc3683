"""Results of queries as files."""

from pathlib import Path

import pyarrow.parquet as pq

from kvaudit.store.reading import QueryResult


def write_parquet(result: QueryResult, path: Path) -> None:
    """Write the rows of a query as Parquet, compressed with zstd.

    Raises:
        OSError: The disk is full or refuses the write.
    """
    with pq.ParquetWriter(path, result.schema, compression="zstd") as writer:
        for batch in result.batches():
            writer.write_batch(batch)

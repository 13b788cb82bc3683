"""Results of queries as files."""

from pathlib import Path

import pyarrow.parquet as pq

from kvaudit.store.folder import writing_to
from kvaudit.store.reading import QueryResult


def write_parquet(result: QueryResult, path: Path) -> None:
    """Write the rows of a query as Parquet, compressed with zstd."""
    with writing_to(path), pq.ParquetWriter(path, result.schema, compression="zstd") as writer:
        for batch in result.batches():
            writer.write_batch(batch)

"""The join by Polars, streaming: the same questions as `sql/`, with the same answers."""

from pathlib import Path

import polars as pl

from kvaudit.detect.semijoin.texts import SemiJoinSettings


def join_by_polars(
    scanned: Path, out: Path, unknown_from: int, settings: SemiJoinSettings
) -> None:
    """Join the files of a scan; see `join.join`."""
    raise NotImplementedError

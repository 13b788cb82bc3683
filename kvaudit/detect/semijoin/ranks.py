"""One order in time over all contexts and answers.

A context exists from the start of its request, an answer from its end. The rank of a text is its
place in the order of (time, context before answer, row); texts without a time come last, from
`unknown_from` on, in the order of rows.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

META = ("row", "organisation", "start_us", "end_us", "replica")
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The order, by position of a row in the table, 0 to n - 1.

    Attributes:
        rows: Row ordinals, (n,) int64.
        organisations: Codes, (n,) int32.
        replicas: Codes, -1 = not known, (n,) int32.
        prompt: Rank of each context, (n,) uint32.
        answer: Rank of each answer, (n,) uint32.
        limit: Rank of the first text from after the answer's end, the skew added, (n,) uint32.
        unknown_from: Rank of the first text without a time.
        order: Position of the row of each rank, (2n,) uint32.
        is_answer: Whether a rank is an answer's, (2n,) bool.
    """

    rows: NDArray[np.int64]
    organisations: NDArray[np.int32]
    replicas: NDArray[np.int32]
    prompt: NDArray[np.uint32]
    answer: NDArray[np.uint32]
    limit: NDArray[np.uint32]
    unknown_from: int
    order: NDArray[np.uint32]
    is_answer: NDArray[np.bool_]

    def frame(self) -> pl.DataFrame:
        """Return what the join needs of each rank, in order of ranks."""
        return pl.DataFrame(
            {
                "rank": np.arange(self.order.size, dtype=np.int64),
                "organisation": self.organisations[self.order],
                "replica": self.replicas[self.order],
                "is_answer": self.is_answer,
                "stop_rank": self.limit[self.order].astype(np.int64),
            }
        )


def ranks_of(meta: pl.DataFrame, skew_us: int) -> Ranks:
    """Order the rows of a table.

    Args:
        meta: Columns `META` of every row, in the order of the table.
        skew_us: Clocks of two records may differ by so much.
    """
    count = meta.height
    start = meta["start_us"].fill_null(_NEVER).to_numpy()
    end = meta["end_us"].fill_null(_NEVER).to_numpy()
    told = np.where(end == _NEVER, start, end)  # an answer without an end counts from its start
    answered = np.where(start == _NEVER, told, np.maximum(start, told))
    at = np.concatenate([start, answered])
    side = np.repeat(np.array([0, 1], np.int8), count)
    position = np.tile(np.arange(count, dtype=np.int64), 2)
    by_time = np.lexsort((position, side, at))
    rank = np.empty(2 * count, np.uint32)
    rank[by_time] = np.arange(2 * count, dtype=np.uint32)
    unknown_from = int(np.searchsorted(at[by_time], _NEVER))
    # Without an end, any text that has a time may have come before it.
    latest = np.where(
        end == _NEVER, _NEVER - 1, np.minimum(answered, _NEVER - 1 - skew_us) + skew_us
    )
    stop = np.searchsorted(at[by_time], latest, "right")
    return Ranks(
        rows=meta["row"].to_numpy(),
        organisations=meta["organisation"].to_numpy(),
        replicas=meta["replica"].fill_null(-1).to_numpy(),
        prompt=rank[:count],
        answer=rank[count:],
        limit=stop.astype(np.uint32),
        unknown_from=unknown_from,
        order=position[by_time].astype(np.uint32),
        is_answer=side[by_time] == 1,
    )

"""The sets of arrays that the kernels work on."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PIECE = 8192  # canonical bytes looked at in one go: all arrays of a piece stay in the L2 cache
CACHE_SIZE = 1 << 16


class Slots(NamedTuple):
    """Open addressing: key, organisation of the owner, flags; same length, a power of two."""

    keys: NDArray[np.uint64]
    owners: NDArray[np.int32]
    flags: NDArray[np.uint8]


class Scratch(NamedTuple):
    """Arrays of one piece: canonical bytes, their raw offsets, sampled hashes and places."""

    buffer: NDArray[np.uint8]
    raw: NDArray[np.uint32]
    hashes: NDArray[np.uint64]
    places: NDArray[np.int64]


class Cache(NamedTuple):
    """What went out last, by slot: hash, organisation and rank, (CACHE_SIZE,) each."""

    hashes: NDArray[np.uint64]
    owners: NDArray[np.int32]
    ranks: NDArray[np.uint32]


def new_scratch() -> Scratch:
    """Return empty arrays of a piece."""
    return Scratch(
        np.zeros(PIECE, np.uint8), np.zeros(PIECE, np.uint32),
        np.zeros(PIECE, np.uint64), np.zeros(PIECE, np.int64),
    )  # fmt: skip


def new_slots(size: int) -> Slots:
    """Return empty slots."""
    return Slots(np.zeros(size, np.uint64), np.zeros(size, np.int32), np.zeros(size, np.uint8))


def new_cache() -> Cache:
    """Return an empty cache."""
    size = CACHE_SIZE
    return Cache(np.zeros(size, np.uint64), np.zeros(size, np.int32), np.zeros(size, np.uint32))

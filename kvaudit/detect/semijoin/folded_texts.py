"""Whole texts in canonical form, with the way back to their characters."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvaudit.detect.semijoin import extension_kernels, kernels
from kvaudit.detect.semijoin.folding import fold_tables

_PAD = 64  # kernels may read so far behind the last text


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedTexts:
    """Texts one after another; a place is an index into `buffer`.

    Attributes:
        data: UTF-8 of all texts, uint8.
        begins: Where each text begins in `data`, one more than texts, int64.
        buffer: Canonical bytes of all texts, a zero byte round each, uint8.
        raw: Where in `data` the character of each canonical byte begins, uint32.
        ends: Where each text ends in `buffer`, int64.
    """

    data: NDArray[np.uint8]
    begins: NDArray[np.int64]
    buffer: NDArray[np.uint8]
    raw: NDArray[np.uint32]
    ends: NDArray[np.int64]

    def places(self, texts: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of raw offsets within the given texts."""
        out = np.empty(texts.size, np.int64)
        absolute = self.begins[texts] + offsets
        extension_kernels.places_of(self.raw, self.ends, texts, absolute, out)
        return out

    def characters(
        self, texts: NDArray[np.int64], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the characters, from the start of their text, of spans of places.

        A span ends behind the last character that left anything in it.
        """
        last = self.raw[np.maximum(stops, 1) - 1].astype(np.int64)
        return self._counted(texts, self.raw[starts].astype(np.int64)), (
            self._counted(texts, last) + 1
        )

    def _counted(self, texts: NDArray[np.int64], absolute: NDArray[np.int64]) -> NDArray[np.int64]:
        order = np.argsort(absolute, kind="stable")
        counted = np.empty(texts.size, np.int64)
        extension_kernels.count_characters(
            self.data, self.begins[texts[order]], absolute[order], counted
        )
        out = np.empty(texts.size, np.int64)
        out[order] = counted
        return out


def fold_all(texts: Iterable[str]) -> FoldedTexts:
    """Fold texts, at most 4 GiB of them."""
    return fold_encoded([text.encode("utf-8", "replace") for text in texts])


def fold_encoded(encoded: Sequence[bytes]) -> FoldedTexts:
    """Fold texts that are UTF-8 already."""
    data = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    begins = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=begins[1:])
    ends = np.zeros(len(encoded), np.int64)
    size = data.size + len(encoded) + 2 * kernels.FOLD_ROOM
    buffer, raw = np.zeros(size + _PAD, np.uint8), np.zeros(size + _PAD, np.uint32)
    tables = fold_tables()
    text = 0
    while text < len(encoded):
        text = kernels.fold_texts(
            data, begins, text, tables, buffer[: buffer.size - _PAD], raw, ends
        )
        if text < len(encoded):  # what grows when it is folded, as a few ligatures do
            buffer, raw = np.append(buffer, np.zeros_like(buffer)), np.append(raw, raw)
    return FoldedTexts(data=data, begins=begins, buffer=buffer, raw=raw, ends=ends)

"""What one would do without the scan, timed on a slice of the same table.

datasketch with its own pipeline, on whole prompts and on windows; rensa where it is installed; and
the plain decoding of the Parquet file, below which nothing can go.
"""

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from datasketch import MinHash, MinHashLSH
from evaluate import read_truth
from writing import TABLE

NUM_PERM = 128
_COLUMNS = ["request_id", "input_text", "output_text"]
_QUERIES_MAX = 96


class Baseline(NamedTuple):
    """One way: MB of text a CPU second, what the slice was, and its recall by tokens."""

    name: str
    speed: float | None
    slice_mb: float
    recall: dict[int, float]
    note: str


def baselines(table: Path, leaks: list[dict[str, Any]], slice_mb: float) -> Iterator[Baseline]:
    """Time each way on the first `slice_mb` of text; recall over leaks, their sources indexed."""
    yield _decoded(table)
    sample = leaks[:: max(1, len(leaks) // _QUERIES_MAX)]
    names = {leak["source"] for leak in sample} | {leak["sink"] for leak in sample}
    needed = {name: (prompt, answer) for name, prompt, answer in _rows(table) if name in names}
    yield _whole(table, sample, needed, slice_mb)
    yield _windowed(table, sample, needed, slice_mb / 10)
    yield _rensa(table, slice_mb)


def _rows(table: Path) -> Iterator[tuple[str, str, str]]:
    for batch in pq.ParquetFile(table).iter_batches(batch_size=256, columns=_COLUMNS):
        yield from zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True)


def _slice(table: Path, megabytes: float) -> list[str]:
    """Return prompts of the table's beginning, answers as prompts of their own."""
    texts: list[str] = []
    size = 0
    for _, prompt, answer in _rows(table):
        texts += [prompt or "", answer or ""]
        size += len(texts[-1]) + len(texts[-2])
        if size > megabytes * 1e6:
            break
    return texts


def _decoded(table: Path) -> Baseline:
    file = pq.ParquetFile(table)
    began = time.process_time()
    size = 0
    for batch in file.iter_batches(batch_size=256, columns=_COLUMNS[1:]):
        size += batch.nbytes
    return Baseline("Parquet decode alone", size / 1e6 / (time.process_time() - began),
                    size / 1e6, {}, "the same two columns, nothing done with them")  # fmt: skip


def _sketch(shingles: set[bytes]) -> MinHash:
    made = MinHash(num_perm=NUM_PERM)
    if shingles:
        made.update_batch(list(shingles))
    return made


def _shingles(words: list[str], width: int) -> set[bytes]:
    return {
        " ".join(words[at : at + width]).encode("utf-8", "replace")
        for at in range(max(1, len(words) - width + 1))
    }


def _whole(table: Path, leaks: list[Any], needed: dict[str, Any], megabytes: float) -> Baseline:
    texts = _slice(table, megabytes)
    index = MinHashLSH(threshold=0.5, num_perm=NUM_PERM)
    began = time.process_time()
    for number, text in enumerate(texts):
        index.insert(str(number), _sketch(_shingles(text.split(), 5)))
    spent = time.process_time() - began
    index = MinHashLSH(threshold=0.5, num_perm=NUM_PERM)
    for name in sorted({leak["source"] for leak in leaks}):
        prompt, answer = needed[name]
        index.insert(name, _sketch(_shingles(f"{prompt} {answer}".split(), 5)))
    hits = [
        leak["source"] in index.query(_sketch(_shingles(needed[leak["sink"]][1].split(), 5)))
        for leak in leaks
    ]
    return _baseline("datasketch MinHash(128) + LSH, whole prompts", texts, spent, leaks, hits,
                     "t = 0.5, 5-word shingles; recall: leaks' sources indexed")  # fmt: skip


def _windows(text: str) -> Iterator[set[bytes]]:
    words = text.split()
    for start in range(0, max(1, len(words) - 20), 20):
        yield _shingles(words[start : start + 40], 3)


def _windowed(table: Path, leaks: list[Any], needed: dict[str, Any], megabytes: float) -> Baseline:
    texts = _slice(table, megabytes)
    index = MinHashLSH(threshold=0.3, num_perm=NUM_PERM)
    began = time.process_time()
    for number, text in enumerate(texts):
        for place, window in enumerate(_windows(text)):
            index.insert(f"{number}/{place}", _sketch(window))
    spent = time.process_time() - began
    few = leaks[:: max(1, len(leaks) // 48)]
    index = MinHashLSH(threshold=0.3, num_perm=NUM_PERM)
    for number, leak in enumerate(few):  # a short way round each source: the best case
        text = needed[leak["source"]][0 if leak["side"] == "prompt" else 1]
        at = text.find(leak["original"])
        around = text[max(0, at - 40_000) : at + 40_000]
        for place, window in enumerate(_windows(around)):
            index.insert(f"{number}/{place}", _sketch(window))
    hits = []
    for number, leak in enumerate(few):
        found = {
            name.split("/")[0]
            for window in _windows(needed[leak["sink"]][1])
            for name in index.query(_sketch(window))
        }
        hits.append(str(number) in found)
    return _baseline("datasketch, windows of 40 words", texts, spent, few, hits,
                     "stride 20, t = 0.3, 3-word shingles; 80 kB round each source")  # fmt: skip


def _rensa(table: Path, megabytes: float) -> Baseline:
    name = "rensa R-MinHash, whole prompts"
    try:
        rensa = importlib.import_module("rensa")
    except ImportError:
        return Baseline(name, None, 0.0, {}, "not installed: `pip install rensa`")
    texts = _slice(table, megabytes)
    began = time.process_time()
    for text in texts:
        sketch = rensa.RMinHash(num_perm=NUM_PERM, seed=42)
        sketch.update([shingle.decode("utf-8") for shingle in _shingles(text.split(), 5)])
        sketch.digest()
    return _baseline(name, texts, time.process_time() - began, [], [], "sketching alone, no index")


def _baseline(name: str, texts: list[str], spent: float, leaks: list[Any], hits: list[bool],
              note: str) -> Baseline:  # fmt: skip
    size = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    recall: dict[int, float] = {}
    for tokens in sorted({leak["tokens"] for leak in leaks}):
        held = [hit for hit, leak in zip(hits, leaks, strict=True) if leak["tokens"] == tokens]
        recall[tokens] = sum(held) / len(held)
    return Baseline(name, size / spent, size, recall, note)


if __name__ == "__main__":
    where = Path(sys.argv[1])
    ways = baselines(where / TABLE, read_truth(where).leaks, float(sys.argv[2]))
    print(json.dumps([way._asdict() for way in ways]))

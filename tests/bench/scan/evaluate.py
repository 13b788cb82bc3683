"""Against the truth: recall, precision, attribution, and whether q holds what it says."""

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from measure import MATCHES, PAIRS
from writing import TABLE, TRUTH

Q_BAR = 0.05
SECOND = "second source of a planted stretch"
Q_LEVELS = (0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was planted, by the rows of the table."""

    leaks: list[dict[str, Any]]
    benign: dict[int, list[tuple[str, str]]]
    rows: dict[str, int]
    organisations: list[str]
    answers: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """What the scan made of the truth.

    Attributes:
        seeded: By leak: whether any match with its tenant covers a part of it.
        exact: By leak that is seeded: whether the longest such match names the first request.
        scored: By leak: the bits of the best pair that is no decoy and not explained away; None.
        q: By leak: the q-value of that pair.
        pairs: (bits, q, is true, what it is) of pairs that count as targets.
        decoys: Bits of the decoy pairs.
        explained: Leaks whose every pair was explained away, by reason.
    """

    seeded: list[bool]
    exact: list[bool]
    scored: list[float | None]
    q: list[float | None]
    pairs: list[tuple[float, float | None, bool, str]]
    decoys: list[float]
    explained: Counter[str]


def read_truth(folder: Path) -> Truth:
    """Read the truth and find its requests in the table.

    Raises:
        SystemExit: A planted text does not stand where the truth says.
    """
    table = pl.read_parquet(folder / TABLE, columns=["request_id", "organisation"])
    rows = {name: row for row, name in enumerate(table["request_id"])}
    leaks: list[dict[str, Any]] = []
    benign: dict[int, list[tuple[str, str]]] = defaultdict(list)
    with (folder / TRUTH).open(encoding="utf-8") as lines:
        for line in lines:
            held = json.loads(line)
            if held["is"] == "leak":
                leaks.append(held)
            else:
                benign[rows[held["sink"]]].append((held["kind"], held["text"]))
    answers = dict(
        enumerate(pl.read_parquet(folder / TABLE, columns=["output_text"])["output_text"])
    )
    for leak in leaks:
        if answers[rows[leak["sink"]]][leak["start"] : leak["end"]] != leak["planted"]:
            raise SystemExit(f"{leak['sink']}: the planted text is not where the truth says")
    return Truth(leaks=leaks, benign=benign, rows=rows, answers=answers,
                 organisations=table["organisation"].to_list())  # fmt: skip


def judged(folder: Path, truth: Truth) -> Verdicts:
    """Compare what `measure` wrote with the truth."""
    by_sink: dict[int, list[int]] = defaultdict(list)
    for number, leak in enumerate(truth.leaks):
        by_sink[truth.rows[leak["sink"]]].append(number)
    seeded, exact = _seeded(folder, truth)
    scored: list[float | None] = [None] * len(truth.leaks)
    q_of: list[float | None] = [None] * len(truth.leaks)
    reasons: dict[int, str] = {}
    pairs, decoys = [], []
    for pair in pl.read_parquet(folder / PAIRS).sort("bits", descending=True).iter_rows(named=True):
        if pair["is_decoy"]:
            if not pair["explained_by"]:
                decoys.append(pair["bits"])
            continue
        held = [
            number for number in by_sink.get(pair["sink_row"], [])
            if _is_leak(pair, truth, truth.leaks[number])
        ]  # fmt: skip
        if pair["explained_by"]:
            reasons |= dict.fromkeys(held, pair["explained_by"])
            continue
        near = [truth.leaks[number] for number in by_sink.get(pair["sink_row"], [])]
        what = "" if held else _what(pair, truth, near)
        pairs.append((pair["bits"], pair["q"], bool(held), what))
        for number in held:
            if scored[number] is None:
                scored[number], q_of[number] = pair["bits"], pair["q"]
    explained = Counter(why for number, why in reasons.items() if scored[number] is None)
    return Verdicts(seeded=seeded, exact=exact, scored=scored, q=q_of, pairs=pairs, decoys=decoys,
                    explained=explained)  # fmt: skip


def _seeded(folder: Path, truth: Truth) -> tuple[list[bool], list[bool]]:
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    matches = pl.read_parquet(folder / MATCHES)
    for match in matches.filter(~pl.col("is_decoy")).iter_rows(named=True):
        found[match["sink_row"]].append(match)
    seeded, exact = [], []
    for leak in truth.leaks:
        source = truth.rows[leak["source"]]
        held = [
            match for match in found[truth.rows[leak["sink"]]]
            if match["sink_start"] < leak["end"] and leak["start"] < match["sink_end"]
            and truth.organisations[match["source_row"]] == truth.organisations[source]
        ]  # fmt: skip
        seeded.append(bool(held))
        if held:
            best = max(held, key=lambda match: match["chained_bytes"])
            exact.append(best["source_row"] == source and best["source_side"] == leak["side"])
    return seeded, exact


def _is_leak(pair: dict[str, Any], truth: Truth, leak: dict[str, Any]) -> bool:
    same = (
        truth.organisations[pair["source_row"]] == truth.organisations[truth.rows[leak["source"]]]
    )
    return same and any(start < leak["end"] and leak["start"] < end for start, end in pair["spans"])


def _what(pair: dict[str, Any], truth: Truth, near: list[dict[str, Any]]) -> str:
    """Return what a false pair is, as the truth knows it; `near` are leaks into the same answer."""
    answer = truth.answers[pair["sink_row"]]
    start, end = pair["spans"][0]
    if any(start < leak["end"] and leak["start"] < end for leak in near):
        return SECOND
    for kind, text in truth.benign.get(pair["sink_row"], []):
        at = answer.find(text)
        if at >= 0 and at < end and start < at + len(text):
            return kind
    return "by chance"


def at_recall(truth: Truth, verdicts: Verdicts, wanted: float, tokens: int) -> tuple[float, float]:
    """Return (precision, recall) at the bits where that recall of leaks so long is reached."""
    bits = sorted(
        (held or 0.0)
        for held, leak in zip(verdicts.scored, truth.leaks, strict=True)
        if leak["tokens"] >= tokens
    )
    if not bits:
        return 0.0, 0.0
    bar = bits[min(len(bits) - 1, int(len(bits) * (1 - wanted)))]
    above = [is_true for score, _, is_true, _ in verdicts.pairs if score >= bar]
    reached = sum(score >= bar > 0 for score in bits) / len(bits)
    return (sum(above) / len(above) if above else 0.0), reached


def observed(verdicts: Verdicts) -> dict[float, tuple[int, float]]:
    """Return, for each level of q, how many pairs pass it and which share of them is false."""
    made = {}
    for level in Q_LEVELS:
        passing = [is_true for _, q, is_true, _ in verdicts.pairs if q is not None and q <= level]
        made[level] = (len(passing), 1 - sum(passing) / len(passing) if passing else 0.0)
    return made


def false_kinds(verdicts: Verdicts, q_bar: float = Q_BAR) -> Counter[str]:
    """Return what the false pairs are that pass."""
    return Counter(
        what
        for _, q, is_true, what in verdicts.pairs
        if not is_true and q is not None and q <= q_bar
    )


def shares(truth: Truth, hits: list[bool], key: Callable[[dict[str, Any]], Any]) -> dict[Any, str]:
    """Return hits by a property of the leaks, as `share (hits/all)`."""
    held: dict[Any, list[bool]] = defaultdict(list)
    for hit, leak in zip(hits, truth.leaks, strict=True):
        held[key(leak)].append(hit)
    order = sorted(held, key=lambda name: (isinstance(name, str), name))
    return {
        name: f"{sum(held[name]) / len(held[name]):.3f} ({sum(held[name])}/{len(held[name])})"
        for name in order
    }


def rate(truth: Truth, hits: list[bool], at_least: int, at_most: int = 10**9) -> float:
    """Return the share of hits among leaks of so many tokens that stand alone."""
    held = [
        hit for hit, leak in zip(hits, truth.leaks, strict=True)
        if at_least <= leak["tokens"] <= at_most
    ]  # fmt: skip
    return sum(held) / len(held) if held else 0.0


def rank_of(bits: list[float], score: float) -> int:
    """Return how many of the rising `bits` are at most `score`."""
    return bisect_right(bits, score)

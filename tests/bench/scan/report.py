"""The figures of one log as Markdown, and each bar with pass or miss."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

from evaluate import (
    Q_BAR,
    Truth,
    Verdicts,
    at_recall,
    false_kinds,
    observed,
    rate,
    shares,
)  # fmt: skip

_WHOLE = "datasketch MinHash(128) + LSH, whole prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All that was measured on one log."""

    gigabytes: float
    counts: dict[str, Any]
    costs: dict[str, Any]
    truth: Truth
    verdicts: Verdicts
    ways: list[Any]
    engine: str

    @property
    def text_bytes(self) -> int:
        return self.counts["bytes in"] + self.counts["bytes out"]

    @property
    def seconds(self) -> float:
        return sum(self.costs["seconds"].values())

    @property
    def speed(self) -> float:
        """MB of text a CPU second, all stages."""
        return self.text_bytes / 1e6 / self.seconds


class Bar(NamedTuple):
    """One bar: what is measured, the bar, whether it is met."""

    name: str
    value: str
    wanted: str
    is_met: bool


def bars(measured: Measured) -> list[Bar]:
    """Compare with the bars of the design; which hold at 0.1 GB too is the reader's to judge."""
    truth, verdicts = measured.truth, measured.verdicts
    at_12, above = rate(truth, verdicts.seeded, 12, 12), rate(truth, verdicts.seeded, 16)
    exact = sum(verdicts.exact) / max(1, len(verdicts.exact))
    made = [
        Bar("seed recall at 12 tokens", f"{at_12:.3f}", ">= .95", at_12 >= 0.95),
        Bar("seed recall at 16 tokens and more", f"{above:.3f}", ">= .98", above >= 0.98),
        Bar("exact source named", f"{exact:.3f}", ">= .9", exact >= 0.9),
        Bar("state / text", f"{measured.costs['state'] / measured.text_bytes:.3f}", "<= .06",
            measured.costs["state"] <= 0.06 * measured.text_bytes),
        Bar("peak memory", f"{measured.costs['peak'] / 1e9:.2f} GB", "<= 4 GB",
            measured.costs["peak"] <= 4e9),
    ]  # fmt: skip
    if measured.costs["is weighed"]:
        made += _weighed_bars(truth, verdicts)
    whole = next((way for way in measured.ways if way["name"] == _WHOLE), None)
    if whole:
        times = measured.speed / whole["speed"]
        made.append(Bar("speed against datasketch on whole prompts", f"{times:.1f}x", ">= 12x",
                        times >= 12))  # fmt: skip
    return made


def _weighed_bars(truth: Truth, verdicts: Verdicts) -> list[Bar]:
    precision, recall = at_recall(truth, verdicts, 0.95, 24)
    passing, false_share = observed(verdicts)[Q_BAR]
    return [
        Bar("precision at recall >= .95 of 24 tokens and more",
            f"{precision:.3f} (recall {recall:.3f})", ">= .95", precision >= 0.95 <= recall),
        Bar(f"false share of the {passing} pairs with q <= {Q_BAR}", f"{false_share:.3f}",
            f"<= {1.2 * Q_BAR:.2f}", passing > 0 and false_share <= 1.2 * Q_BAR),
    ]  # fmt: skip


def report(measured: Measured) -> str:
    """Return the report of one log."""
    truth, verdicts = measured.truth, measured.verdicts
    counts = measured.counts
    parts = [
        f"\n## {measured.gigabytes:g} GB\n",
        f"{counts['requests']:,} requests of {counts['tenants']} tenants,"
        f" {measured.text_bytes / 1e6:,.0f} MB of text, answers"
        f" {100 * counts['bytes out'] / measured.text_bytes:.1f} %, {len(truth.leaks)} leaks;"
        f" generated in {counts['CPU s to generate']} s of CPU.\n",
        _table(("bar", "measured", "wanted", ""), [
            (bar.name, bar.value, bar.wanted, "pass" if bar.is_met else "**MISS**")
            for bar in bars(measured)
        ]),
        _recall(truth, verdicts),
        *([_passing(measured)] if measured.costs["is weighed"] else []),
        _costs(measured),
    ]  # fmt: skip
    if measured.ways:
        parts.append(_ways(measured))
    return "\n".join(parts)


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"


def _recall(truth: Truth, verdicts: Verdicts) -> str:
    passed = [q is not None and q <= Q_BAR for q in verdicts.q]
    rows = []
    for title, key in (
        ("tokens", lambda leak: leak["tokens"]), ("edit", lambda leak: leak["edit"]),
        ("script", lambda leak: leak["script"]), ("kind", lambda leak: leak["kind"]),
        ("source side", lambda leak: leak["side"]),
        ("tenants given it", lambda leak: leak["group"]),
    ):  # fmt: skip
        seeded, found = shares(truth, verdicts.seeded, key), shares(truth, passed, key)
        rows += [(f"{title} {name}", seeded[name], found[name]) for name in seeded]
    return _table(("leaks by", "seeded", f"finding at q <= {Q_BAR}"), rows)


def _passing(measured: Measured) -> str:
    verdicts = measured.verdicts
    rows = [
        (level, passing, f"{share:.3f}", f"{share / level:.2f}")
        for level, (passing, share) in observed(verdicts).items()
    ]
    made = _table(("q at most", "pairs", "observed false share", "ratio to q"), rows)
    kinds = false_kinds(verdicts) or Counter({"none": 0})
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    away = ", ".join(f"{why} {count}" for why, count in verdicts.explained.most_common(4)) or "none"
    costs = measured.costs
    return (
        f"{made}\nFalse pairs that pass: {told}. Leaks explained away: {away}."
        f" Targets {costs['targets']}, decoys {costs['decoys']} in windows of equal length;"
        f" {len(verdicts.decoys)} decoys in all.\n"
    )


def _costs(measured: Measured) -> str:
    size = measured.text_bytes / 1e6
    rows = [
        (stage, f"{seconds:.2f}", f"{size / seconds:,.0f}" if seconds > 0.005 else "-",
         f"{100 * seconds / measured.seconds:.0f} %")
        for stage, seconds in measured.costs["seconds"].items()
    ]  # fmt: skip
    rows.append(("all", f"{measured.seconds:.2f}", f"{measured.speed:.0f}", "100 %"))
    memory = measured.costs
    return (
        _table(("stage", "CPU s", "MB/s", "share"), rows)
        + f"\nPeak memory {memory['peak of the join'] / 1e9:.2f} GB to the end of the extension,"
        f" {memory['peak'] / 1e9:.2f} GB in all; state {memory['state'] / 1e6:.1f} MB;"
        f" {memory['matches']:,} matches, {memory['pairs']:,} pairs.\n"
    )


def _ways(measured: Measured) -> str:
    rows = []
    for way in measured.ways:
        if way["speed"] is None:
            rows.append((way["name"], "skipped", "-", "-", way["note"]))
            continue
        seconds = measured.text_bytes / 1e6 / way["speed"]
        recall = " ".join(f"{tokens}: {share:.2f}" for tokens, share in way["recall"].items())
        rows.append((
            way["name"], f"{way['speed']:.1f}", f"{seconds:,.0f} (from {way['slice_mb']:.0f} MB)",
            recall or "-", way["note"],
        ))  # fmt: skip
    return _table(("other ways", "MB/s", "CPU s for this log", "recall by tokens", "how"), rows)

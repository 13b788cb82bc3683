"""KVA201, KVA202: another tenant's text in an answer, from the semi-join to evidence.

Matches are weighed, joined by pair of requests, and counted against the log's own decoys. A pair
whose text is public, because prompts of three organisations held it, or a stock line of answers, is
explained and stays below the threshold.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from kvaudit.detect.scored.decoys import BITS_MIN as BITS_CONVICTING
from kvaudit.detect.scored.decoys import (
    EXPECTED_BAR,
    Calibration,
    Counted,
    Moment,
    calibrate,
    null_version,
)
from kvaudit.detect.scored.score import Scorer
from kvaudit.detect.scored.weighing import Weighed, weigh
from kvaudit.detect.semijoin.texts import Match
from kvaudit.findings import Evidence, Json, Side, Source
from kvaudit.forensics.metadata import EVIDENCE_MAX, RuleOutcome
from kvaudit.scan.named import NamedRows
from kvaudit.scan.texts import TableTexts

PUBLIC_ORGANISATIONS = 3
BITS_MIN = 40.0  # weaker pairs are everyday phrases: not reported at all
# Two texts about one thing share several idioms: a further stretch adds what it has beyond this.
FURTHER_BITS = 40.0
EXCERPT_CHARS = 2_000
_RULE_OF = {"prompt": "KVA201", "answer": "KVA202"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """All that one answer shares with one side of one foreign request.

    Attributes:
        matches: Weighed, the strongest first.
        bits: Of the strongest that counts, and what further ones add.
        explained_by: Why it is no trace; "" if it may be one.
    """

    sink_row: int
    source_row: int
    side: str
    is_decoy: bool
    matches: tuple[Weighed, ...]
    bits: float
    explained_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What the comparison of tenants found.

    Attributes:
        outcomes: Of KVA201 and KVA202.
        q_values: Share of false findings, by `id()` of the evidence; only where it was counted.
        weighed, calibration: For the rules that build on them.
        examined: Answers that were compared.
    """

    outcomes: tuple[RuleOutcome, ...]
    q_values: Mapping[int, float]
    weighed: tuple[Weighed, ...]
    calibration: Calibration
    examined: int


def foreign_text(texts: TableTexts, matches: Sequence[Match], scorer: Scorer) -> Foreign:
    """Weigh, count and report what answers share with foreign requests."""
    weighed = weigh(texts, matches, scorer)
    pairs = paired(weighed)
    moments = moments_of(texts)
    calibration = calibrate(
        list(moments.values()),
        [
            Counted(p.bits, p.side, p.is_decoy, moments[p.sink_row], moments[p.source_row])
            for p in pairs if not p.explained_by
        ],
    )  # fmt: skip
    reported = [p for p in pairs if not p.is_decoy and p.bits >= BITS_MIN]
    reported.sort(key=lambda p: (-p.bits, p.sink_row, p.source_row))
    examined = sum(moment.has_answer for moment in moments.values())
    made = _evidence_of(texts, reported[: 2 * EVIDENCE_MAX], calibration)
    q_values: dict[int, float] = {}
    outcomes = []
    for side, rule_id in _RULE_OF.items():
        found = [item for item in made if item.rule_id == rule_id][:EVIDENCE_MAX]
        for item in found:
            q_value = calibration.q_value(item.score, side)
            if q_value is not None and calibration.is_counted(item.score, side):
                q_values[id(item)] = q_value
        outcomes.append(
            RuleOutcome(
                rule_id=rule_id, evidence=tuple(found), fired=len(found), examined=examined,
                reason="" if examined else "no answer's text is logged",
                note=_note(calibration, side),
            )
        )  # fmt: skip
    return Foreign(
        outcomes=tuple(outcomes), q_values=q_values, weighed=tuple(weighed),
        calibration=calibration, examined=examined,
    )  # fmt: skip


def _note(calibration: Calibration, side: str) -> str:
    if calibration.reasons[side]:
        return (
            f"{calibration.reasons[side]}: weighed against the shipped null,"
            f" {calibration.pairs:,} foreign pairs"
        )
    return f"{calibration.targets[side]:,} targets, {calibration.decoys[side]:,} decoys"


def moments_of(texts: TableTexts) -> dict[int, Moment]:
    """Return every compared request in time, by row."""
    made: dict[int, Moment] = {}
    last: tuple[int | None, int] = (None, 0)
    columns = ("row", "organisation", "conversation", "start_us", "end_us", "context", "answer")
    for frame in texts.batches(columns):
        sizes = frame.with_columns(pl.col("context", "answer").str.len_bytes())
        for row, owner, conversation, start, end, context, answer in sizes.iter_rows():
            resent = last[1] if conversation is not None and conversation == last[0] else 0
            last = (conversation, context)
            made[row] = Moment(
                organisation=owner, start_us=start, end_us=end, has_answer=answer > 0,
                fresh_bytes=max(0, context - resent) + answer,
            )  # fmt: skip
    return made


def paired(weighed: Iterable[Weighed]) -> list[Pair]:
    """Join matches by sink, source and side, in the order of the sinks."""
    held: dict[tuple[int, int, str, bool], list[Weighed]] = defaultdict(list)
    for item in weighed:
        match = item.match
        held[match.sink_row, match.source_row, match.source_side, match.is_decoy].append(item)
    made = []
    for (sink, source, side, is_decoy), items in sorted(held.items()):
        items.sort(key=lambda item: (-item.score.bits, item.match.sink_start))
        counting = [item for item in items if not _explained(item)]
        shown = counting or items
        made.append(
            Pair(
                sink_row=sink, source_row=source, side=side, is_decoy=is_decoy,
                matches=tuple(shown), bits=_together(shown),
                explained_by="" if counting else _explained(items[0]),
            )
        )  # fmt: skip
    return made


def _together(items: Sequence[Weighed]) -> float:
    """Return the weight of all stretches of a pair, the strongest first."""
    strongest, *further = (item.score.bits for item in items)
    return round(strongest + sum(max(0.0, bits - FURTHER_BITS) for bits in further), 1)


def _explained(item: Weighed) -> str:
    if item.match.prompt_organisations >= PUBLIC_ORGANISATIONS:
        return f"public: prompts of {item.match.prompt_organisations} organisations held it"
    if item.score.public_share > 0.9:
        return "public: a text that everybody knows"
    return "a stock line of answers" if item.is_stock else ""


def _evidence_of(
    texts: TableTexts, pairs: Sequence[Pair], calibration: Calibration
) -> list[Evidence]:
    others = {row for p in pairs for row in p.matches[0].match.other_sources}
    rows = NamedRows.of(texts, {r for p in pairs for r in (p.sink_row, p.source_row)}, others)
    return [_evidence(pair, rows, calibration) for pair in pairs]


def _evidence(pair: Pair, rows: NamedRows, calibration: Calibration) -> Evidence:
    sink, source = rows.whole(pair.sink_row), rows.whole(pair.source_row)
    best = pair.matches[0]
    match = best.match
    origin = source.context if pair.side == "prompt" else source.answer
    details: dict[str, Json] = {
        **sink.details(), **source.source_details(),
        "shared_characters": sum(len(item.shared) for item in pair.matches),
        "stretches": len(pair.matches), "longest_exact_bytes": match.exact_bytes,
        "edits": sum(item.match.edits for item in pair.matches),
        "values": len({value for item in pair.matches for value in item.score.values}),
        "other_sources": rows.others(match.other_sources),
        **_weight(pair, calibration),
    }  # fmt: skip
    return Evidence(
        rule_id=_RULE_OF[pair.side],
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=Source(
            request_id=source.request_id, tenant=source.tenant,
            side=Side.PROMPT if pair.side == "prompt" else Side.ANSWER,
            span=origin.shown_span(match.source_start, match.source_end),
        ),
        sink_span=sink.answer.shown_span(match.sink_start, match.sink_end),
        excerpt=best.shared[:EXCERPT_CHARS],
        score=pair.bits,
        details=details,
    )  # fmt: skip


def _weight(pair: Pair, calibration: Calibration) -> dict[str, Json]:
    """Return what the threshold is applied to, where no q-value is."""
    made: dict[str, Json] = {"explained_by": pair.explained_by} if pair.explained_by else {}
    if not calibration.is_counted(pair.bits, pair.side):
        few = "fewer than 20 pairs are this strong, and no decoy is"
        expected = calibration.expected_accidents(pair.bits, pair.side)
        made |= {
            "expected_accidents": expected, "is_weak": pair.bits < BITS_CONVICTING,
            "expected_accidents_bar": EXPECTED_BAR, "null_version": null_version(),
            "foreign_pairs": calibration.pairs, "reason": calibration.reasons[pair.side] or few,
        }  # fmt: skip
    return made

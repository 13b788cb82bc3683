"""KVA101 and KVA102 in a log: given canaries, looked for in every answer.

The detectors are those of a live audit. A request that carries a canary in its context is its
source; the records of carriers stay in memory, the answers pass by in batches.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from kvaudit.canary import PARTIAL_WORDS, Canary
from kvaudit.detect.canaries import find_canaries
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.folded import find_folded_canaries
from kvaudit.detect.folds import squeeze
from kvaudit.findings import Evidence
from kvaudit.forensics.metadata import EVIDENCE_MAX, RuleOutcome
from kvaudit.records import Message, Outcome, RequestRecord
from kvaudit.scan.named import NamedRow, NamedRows
from kvaudit.scan.texts import TableTexts

SINKS_AT_ONCE = 2_000
CARRIERS_MAX = 5_000
NOT_GIVEN = "no list of canaries was given: `--canaries FILE`"
_FIND = {"KVA101": find_canaries, "KVA102": find_folded_canaries}


def canaries_in_logs(texts: TableTexts, canaries: tuple[Canary, ...]) -> list[RuleOutcome]:
    """Apply KVA101 and KVA102."""
    if not canaries:
        return [RuleOutcome(rule_id=rule_id, reason=NOT_GIVEN) for rule_id in _FIND]
    carriers = _carriers(texts, canaries)
    if not carriers:
        none = "no request of the log carries a canary of the list"
        return [RuleOutcome(rule_id=rule_id, reason=none) for rule_id in _FIND]
    made: dict[str, list[Evidence]] = {rule_id: [] for rule_id in _FIND}
    examined = batches = 0
    held = {record.request_id: record.canaries for record in carriers}
    for sinks in _sinks(texts, held):
        batches += 1
        own = {record.request_id for record in sinks}
        corpus = Corpus(records=(*(r for r in carriers if r.request_id not in own), *sinks))
        examined += len(sinks)
        for rule_id, find in _FIND.items():
            made[rule_id] += _of_sinks(find(corpus), own)
    return [_outcome(texts, rule_id, held, batches, examined) for rule_id, held in made.items()]


def _of_sinks(found: Detection, own: set[str]) -> list[Evidence]:
    return [item for item in found.evidence if item.sink_request_id in own]


def _carriers(texts: TableTexts, canaries: tuple[Canary, ...]) -> list[RequestRecord]:
    """Return the first requests whose context holds a canary, without their answers."""
    marks = {c.label: (squeeze(c.code), _word_marks(c)) for c in canaries}
    made: list[RequestRecord] = []
    for frame in texts.batches(["row", "context"]):
        for row, context in frame.iter_rows():
            squeezed = squeeze(context)
            held = tuple(
                c for c in canaries
                if marks[c.label][0] in squeezed or any(m in squeezed for m in marks[c.label][1])
            )  # fmt: skip
            if held and len(made) < CARRIERS_MAX:
                made.append(RequestRecord(request_id=str(row), tenant="", canaries=held))
    return _told(texts, made)


def _word_marks(canary: Canary) -> tuple[str, ...]:
    words = [squeeze(word) for word in canary.words]
    return tuple(
        "".join(words[at : at + PARTIAL_WORDS]) for at in range(len(words) - PARTIAL_WORDS + 1)
    )


def _told(texts: TableTexts, records: list[RequestRecord]) -> list[RequestRecord]:
    """Give records of rows their tenant, time and context."""
    by_row = {int(record.request_id): record for record in records}
    columns = ("tenant_id", "organisation", "start_time", "end_time")
    contexts = texts.fetch(sorted(by_row), "context")
    return [
        replace(by_row[at], **_facts(row), messages=(Message(role="user", content=contexts[at]),))
        for at, row in texts.raw(sorted(by_row), columns)
    ]


def _facts(row: Mapping[str, Any]) -> dict[str, Any]:
    start, end = row["start_time"], row["end_time"]
    return {
        "tenant": row["tenant_id"], "organisation": row["organisation"],
        "sent_unix_ns": round(start.timestamp() * 1e9) if start is not None else None,
        "ended_unix_ns": round(end.timestamp() * 1e9) if end is not None else None,
        "outcome": Outcome.ANSWERED,
    }  # fmt: skip


def _sinks(
    texts: TableTexts, canaries: Mapping[str, tuple[Canary, ...]]
) -> Iterator[list[RequestRecord]]:
    """Yield the answers with their contexts, many at a time; carriers keep their canaries."""
    held: list[RequestRecord] = []
    for frame in texts.batches(["row", "context", "answer"]):
        answered = frame.filter(pl.col("answer") != "")
        rows = answered["row"].to_list()
        columns = ("tenant_id", "organisation", "start_time", "end_time")
        facts = {at: _facts(row) for at, row in texts.raw(rows, columns)} if rows else {}
        for row, context, answer in answered.iter_rows():
            held.append(
                RequestRecord(
                    request_id=str(row), messages=(Message(role="user", content=context),),
                    output_text=answer, canaries=canaries.get(str(row), ()), **facts[row],
                )
            )  # fmt: skip
        if len(held) >= SINKS_AT_ONCE:
            yield held
            held = []
    if held:
        yield held


def _outcome(
    texts: TableTexts, rule_id: str, found: list[Evidence], batches: int, examined: int
) -> RuleOutcome:
    found.sort(key=lambda item: (-item.score, int(item.sink_request_id)))
    shown = found[:EVIDENCE_MAX]
    wanted = {int(item.sink_request_id) for item in shown}
    wanted |= {int(item.source.request_id) for item in shown if item.source is not None}
    others = [int(str(o["request_id"])) for item in shown for o in _others(item)]
    rows = NamedRows.of(texts, wanted, others)
    made = [_renamed(item, rows, batches) for item in shown]
    return RuleOutcome(rule_id=rule_id, evidence=tuple(made), fired=len(found), examined=examined)


def _others(item: Evidence) -> list[Any]:
    held = item.details.get("other_sources")
    return held if isinstance(held, list) else []


def _renamed(item: Evidence, rows: NamedRows, batches: int) -> Evidence:
    """Name the log's own requests; the chance is bounded over all batches."""
    sink: NamedRow = rows.whole(int(item.sink_request_id))
    assert item.source is not None, "a canary has a carrier"
    source = rows.whole(int(item.source.request_id))
    span = item.sink_span
    shown = sink.answer.shown_span(span.start, span.end) if span is not None else None
    others = [int(str(other["request_id"])) for other in _others(item)]
    return replace(
        item,
        sink_request_id=sink.request_id,
        source=replace(item.source, request_id=source.request_id, span=None),
        sink_span=shown,
        chance=None if item.chance is None else min(1.0, item.chance * batches),
        details={
            **item.details, **sink.details(), **source.source_details(),
            "other_sources": rows.others(others),
        },
    )  # fmt: skip

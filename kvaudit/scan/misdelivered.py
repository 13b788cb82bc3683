"""KVA203 and KVA204 over a canonical table: replies that belong to another request, to evidence."""

from collections.abc import Sequence

from kvaudit.detect.scored.decoys import EXPECTED_BAR, Calibration
from kvaudit.detect.scored.other_prompt import OtherPrompt, find_other_prompts
from kvaudit.detect.scored.same_reply import SameReply, find_same_replies
from kvaudit.detect.scored.score import Scorer
from kvaudit.detect.scored.weighing import Weighed
from kvaudit.detect.semijoin.texts import BARRIER
from kvaudit.findings import Evidence, Json, Side, Source, Span
from kvaudit.forensics.metadata import EVIDENCE_MAX, RuleOutcome
from kvaudit.scan.named import NamedRows
from kvaudit.scan.texts import TableTexts

EXCERPT_CHARS = 2_000


def same_replies(
    texts: TableTexts, weighed: Sequence[Weighed], calibration: Calibration, *, examined: int
) -> RuleOutcome:
    """Apply KVA203; a reply given again weighs what its longest shared stretch weighs."""
    found = find_same_replies(texts, weighed)
    bits = _strongest(weighed)
    shown = found[:EVIDENCE_MAX]
    rows = NamedRows.of(texts, [r for f in shown for r in (f.sink_row, f.source_row)], ())
    made = []
    for item in shown:
        weight = bits[item.sink_row, item.source_row]
        expected = calibration.expected_accidents(weight, "answer")
        made.append(_same_reply(item, rows, expected))
    return RuleOutcome(
        rule_id="KVA203", evidence=tuple(made), fired=len(found), examined=examined,
        reason="" if examined else "no answer's text is logged",
    )  # fmt: skip


def _strongest(weighed: Sequence[Weighed]) -> dict[tuple[int, int], float]:
    made: dict[tuple[int, int], float] = {}
    for item in weighed:
        if item.match.source_side == "answer" and not item.match.is_decoy:
            pair = item.match.sink_row, item.match.source_row
            made[pair] = max(made.get(pair, 0.0), item.score.bits)
    return made


def _same_reply(item: SameReply, rows: NamedRows, expected: float) -> Evidence:
    sink, source = rows.whole(item.sink_row), rows.whole(item.source_row)
    details: dict[str, Json] = {
        **sink.details(), **source.source_details(), "shingles": item.shingles,
        "holds_foreign_value": item.holds_foreign_value,
        "misses_what_was_asked": item.misses_own_ask, "bound_words": item.bound_words,
        "expected_accidents": expected, "expected_accidents_bar": EXPECTED_BAR,
    }  # fmt: skip
    text = sink.answer.text.replace(BARRIER, "\n")
    return Evidence(
        rule_id="KVA203",
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=Source(request_id=source.request_id, tenant=source.tenant, side=Side.ANSWER),
        sink_span=Span(start=0, end=len(text)),
        excerpt=text[:EXCERPT_CHARS],
        score=item.similarity,
        details=details,
    )


def other_prompts(
    texts: TableTexts, scorer: Scorer, calibration: Calibration, *, skew_us: int, examined: int
) -> RuleOutcome:
    """Apply KVA204."""
    found = find_other_prompts(texts, scorer, skew_us=skew_us)
    found.sort(key=lambda f: (-f.bits, f.sink_row))
    shown = found[:EVIDENCE_MAX]
    rows = NamedRows.of(texts, [r for f in shown for r in (f.sink_row, f.source_row)], ())
    return RuleOutcome(
        rule_id="KVA204",
        evidence=tuple(_other_prompt(item, rows, calibration) for item in shown),
        fired=len(found),
        examined=examined,
        reason="" if examined else "no answer's text is logged",
    )


def _other_prompt(item: OtherPrompt, rows: NamedRows, calibration: Calibration) -> Evidence:
    sink, source = rows.whole(item.sink_row), rows.whole(item.source_row)
    details: dict[str, Json] = {
        **sink.details(), **source.source_details(), "rare_words": item.words,
        "values": item.values, "names": item.names, "own_words": item.own_words,
    }  # fmt: skip
    if item.is_strong:
        details |= {
            "expected_accidents": calibration.expected_accidents(item.bits, "prompt"),
            "expected_accidents_bar": EXPECTED_BAR,
        }
    return Evidence(
        rule_id="KVA204",
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=Source(request_id=source.request_id, tenant=source.tenant, side=Side.PROMPT),
        excerpt=sink.answer.text.replace(BARRIER, "\n")[:EXCERPT_CHARS],
        score=item.bits,
        details=details,
    )

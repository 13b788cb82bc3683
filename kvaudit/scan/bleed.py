"""KVA205 over a canonical table: foreign values and foreign schemas to evidence."""

from collections.abc import Sequence

from kvaudit.detect.scored.bleed import COMMON_ORGANISATIONS, Bled, find_bled_values
from kvaudit.detect.scored.decoys import EXPECTED_BAR
from kvaudit.detect.scored.public_text import shipped_public_text
from kvaudit.findings import Evidence, Json, Side, Source
from kvaudit.forensics.metadata import EVIDENCE_MAX, RuleOutcome
from kvaudit.scan.named import NamedRows
from kvaudit.scan.texts import TableTexts

RULE_ID = "KVA205"


def bled_values(texts: TableTexts, *, skew_us: int, examined: int) -> RuleOutcome:
    """Apply KVA205 to the values of every answer."""
    found = find_bled_values(texts, shipped_public_text(), skew_us=skew_us)
    found.sort(key=lambda b: (-b.bits, b.sink_row, b.start))
    shown = found[:EVIDENCE_MAX]
    rows = NamedRows.of(texts, shown_rows(shown), [r for b in shown for r in b.other_sources])
    return RuleOutcome(
        rule_id=RULE_ID,
        evidence=tuple(_evidence(item, rows) for item in shown),
        fired=len(found),
        examined=examined,
        reason="" if examined else "no answer's text is logged",
    )


def shown_rows(found: Sequence[Bled]) -> list[int]:
    """Return the rows whose texts the evidence needs."""
    return [row for item in found for row in (item.sink_row, item.source_row)]


def _evidence(item: Bled, rows: NamedRows) -> Evidence:
    sink, source = rows.whole(item.sink_row), rows.whole(item.source_row)
    details: dict[str, Json] = {
        **sink.details(), **source.source_details(),
        "is_masked": item.is_masked, "bits": round(item.bits, 1),
        "expected_accidents": item.expected_accidents, "expected_accidents_bar": EXPECTED_BAR,
        "same_field": bool(item.field),
        "other_sources": rows.others(item.other_sources),
    }  # fmt: skip
    if item.organisations >= COMMON_ORGANISATIONS:
        details["explained_by"] = f"public: {item.organisations} organisations knew the value"
    origin = source.context
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=Source(
            request_id=source.request_id, tenant=source.tenant, side=Side.PROMPT,
            span=origin.shown_span(item.source_start, item.source_start + len(item.source_text)),
        ),
        sink_span=sink.answer.shown_span(item.start, item.start + len(item.text)),
        excerpt=item.text,
        score=round(item.bits, 1),
        details=details,
    )  # fmt: skip

"""What the HTML page shows, worked out before any template sees it; text is already redacted."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kvaudit.findings import AuditRun, Bound, Evidence, Finding, Json, OracleReport, Side, Span
from kvaudit.records import RequestRecord
from reports import neutral
from reports.instants import time_text
from reports.json_report import PLAIN_DETAIL_KEYS
from reports.overlap import own_spans
from reports.redact import EXCERPT_CHARS, Piece, Redactor, plain_json
from reports.wording import (
    FOREIGN_KINDS,
    KIND_WORDS,
    chance_words,
    evidence_chance,
    names_source,
    oracle_sentence,
    oracle_state,
    rule_name,
    rule_summary,
    rules_of_sink,
    share,
    sorted_findings,
)  # fmt: skip

ASKED_CHARS = 160  # of the sink's own prompt; its end is what was asked
WHOLE_SINKS_MAX = 1_000  # after so many, only the shared text is shown: pages must stay small
ITEMS_MAX = 200  # of one object, as shown
MATRIX_TENANTS_MAX = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TextView:
    """One side of the evidence: pieces of text, or why there are none.

    Attributes:
        label: Whose text it is.
        pieces: Printable pieces, marked.
        missing: Why there is no text; "" if there is.
    """

    label: str
    pieces: tuple[Piece, ...] = ()
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingView:
    """One finding inside its sink's article; fields as shown."""

    anchor: str
    rule: str
    name: str
    summary: str
    kind: str
    kind_words: str
    severity: str
    chance: str
    score: str
    answer: TextView | None
    source: TextView | None
    details: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkView:
    """One answer with all its findings, the strongest first.

    Attributes:
        time: When it was sent, ISO 8601; "" if not known.
        facts: Labelled figures of the request.
        asked: End of the own prompt; None where the record is missing.
        sources: Source tenants, for the filter.
    """

    anchor: str
    request_id: str
    tenant: str
    severity: str
    rules: tuple[str, ...]
    sources: tuple[str, ...]
    source_words: str
    chance: str
    time: str
    facts: tuple[tuple[str, str], ...]
    asked: TextView | None
    findings: tuple[FindingView, ...]


class MatrixCell(NamedTuple):
    """Responses of one receiving tenant with text of one source tenant, and the shade 0 to 4."""

    responses: int
    shade: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixView:
    """Responses by source tenant (rows) and receiving tenant (columns).

    Attributes:
        left_out: Tenants that found no place; 0 if all did.
    """

    receiving: tuple[str, ...]
    rows: tuple[tuple[str, tuple[MatrixCell, ...]], ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleView:
    """One row of the oracle table."""

    rule: str
    name: str
    summary: str
    state: str
    fired: str
    sensitivity: str
    false_alarms: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundView:
    """One row of the table of strata; `bar` is the bound's length in per cent, None if unknown."""

    stratum: str
    sent: str
    requests: int
    censored: int
    detections: int
    sensitivity: str
    upper: str
    confidence: str
    bar: float | None


class _Texts(NamedTuple):
    records: Mapping[str, RequestRecord]
    redactor: Redactor
    is_whole: bool = True


def sink_views(
    run: AuditRun, records: Mapping[str, RequestRecord], redactor: Redactor
) -> tuple[SinkView, ...]:
    """Group findings by sink request, the worst and surest sink first."""
    by_sink: dict[str, list[Finding]] = {}
    for finding in sorted_findings(run.findings):
        by_sink.setdefault(finding.evidence.sink_request_id, []).append(finding)
    whole, cut = _Texts(records, redactor), _Texts(records, redactor, is_whole=False)
    rules = rules_of_sink(run.findings)
    used: Counter[str] = Counter()
    return tuple(
        _sink_view(
            sink_id, findings, rules[sink_id], whole if place < WHOLE_SINKS_MAX else cut, used
        )
        for place, (sink_id, findings) in enumerate(by_sink.items())
    )


def matrix_view(run: AuditRun) -> MatrixView | None:
    """Count responses by source and receiving tenant; None without a named source."""
    pairs = {
        (
            finding.evidence.source.tenant,
            finding.evidence.sink_tenant,
            finding.evidence.sink_request_id,
        )
        for finding in run.findings
        if finding.evidence.source and finding.kind in FOREIGN_KINDS
    }
    counts = Counter((source, sink) for source, sink, _ in pairs)
    if not counts:
        return None
    sources = _most(Counter({s: 0 for s, _ in counts}), counts, 0)
    receiving = _most(Counter({s: 0 for _, s in counts}), counts, 1)
    shown_sources, shown_receiving = sources[:MATRIX_TENANTS_MAX], receiving[:MATRIX_TENANTS_MAX]
    most = max(counts.values())
    rows = tuple(
        (
            neutral.name(source),
            tuple(
                MatrixCell(counts[source, sink], -(-4 * counts[source, sink] // most))
                for sink in shown_receiving
            ),
        )
        for source in shown_sources
    )
    left_out = len(sources) - len(shown_sources) + len(receiving) - len(shown_receiving)
    return MatrixView(
        receiving=tuple(map(neutral.name, shown_receiving)), rows=rows, left_out=left_out
    )


def evidence_texts(
    evidence: Evidence, records: Mapping[str, RequestRecord], redactor: Redactor
) -> tuple[TextView | None, TextView | None]:
    """Return the sink's and the source's side of one piece of evidence."""
    texts = _Texts(records, redactor)
    return _answer(evidence, texts), _source(evidence, texts)


def request_facts(record: RequestRecord | None) -> tuple[tuple[str, str], ...]:
    """Return labelled figures of a request."""
    return _facts(record)


def oracle_view(oracle: OracleReport) -> OracleView:
    """Return one row of the oracle table."""
    lower = oracle.sensitivity_lower
    sensitivity = "not measured" if oracle.sensitivity is None else share(oracle.sensitivity)
    if oracle.sensitivity is not None and lower is not None:
        sensitivity += f" (at least {share(lower)})"
    alarms = (
        "not measured"
        if oracle.false_alarms is None
        else f"{oracle.false_alarms:,} of {oracle.trials:,}"
    )
    is_applied = oracle.available
    return OracleView(
        rule=neutral.name(oracle.rule_id),
        name=rule_name(oracle.rule_id),
        summary=rule_summary(oracle.rule_id),
        state=oracle_state(oracle),
        fired=f"{oracle.fired:,} of {oracle.examined:,}" if is_applied else "–",
        sensitivity=sensitivity if is_applied else "–",
        false_alarms=alarms if is_applied else "–",
        reason=neutral.sentence(oracle.reason)
        if is_applied
        else oracle_sentence(oracle).capitalize(),
    )


def bound_view(bound: Bound) -> BoundView:
    """Return one row of the table of strata."""
    upper = bound.upper
    return BoundView(
        stratum=neutral.name(bound.stratum),
        sent=f"{bound.sent:,}" if bound.sent else "–",
        requests=bound.requests,
        censored=bound.censored,
        detections=bound.detections,
        sensitivity="not measured" if bound.sensitivity is None else share(bound.sensitivity),
        upper="no bound" if upper is None else share(upper, up=True),
        confidence=share(bound.confidence),
        bar=None if upper is None else round(min(max(upper, 0.0), 1.0) * 100, 1),
    )


def flat_items(value: Mapping[str, Json], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested JSON as `a.b` and printable value, for a table."""
    items: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{prefix}{neutral.name(str(key))}"
        if isinstance(item, Mapping) and item:
            items += flat_items(item, f"{name}.")
        elif item != []:
            items.append((name, neutral.sentence(value_text(plain_json(item)))))
    return items[:ITEMS_MAX]


def value_text(value: Json) -> str:
    """Return a JSON value as a reader wants it: words bare, the rest as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return "not known"
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _most(names: Counter[str], counts: Counter[tuple[str, str]], side: int) -> list[str]:
    for pair, count in counts.items():
        names[pair[side]] += count
    return sorted(names, key=lambda name: (-names[name], name))


def _sink_view(
    sink_id: str, findings: list[Finding], rules: list[str], texts: _Texts, used: Counter[str]
) -> SinkView:
    best = findings[0]
    record = texts.records.get(sink_id)
    tenants = [f.evidence.source.tenant for f in findings if f.evidence.source]
    named = next((f.evidence for f in findings if f.evidence.source), best.evidence)
    # What says the same as a finding already shown is told without its text.
    shown: set[str] = set()
    return SinkView(
        anchor=_anchor("answer", sink_id, used),
        request_id=neutral.name(sink_id),
        tenant=neutral.name(best.evidence.sink_tenant),
        severity=best.severity.value,
        rules=tuple(rules),
        sources=tuple(dict.fromkeys(map(neutral.name, tenants))),
        source_words=names_source(named),
        chance=_short_chance(best),
        time=time_text(record.sent_unix_ns) if record else "",
        facts=_facts(record) if texts.is_whole else (),
        asked=_asked(record, texts.redactor) if texts.is_whole else None,
        findings=tuple(_finding_view(finding, texts, shown, used) for finding in findings),
    )


def _finding_view(
    finding: Finding, texts: _Texts, shown: set[str], used: Counter[str]
) -> FindingView:
    evidence = finding.evidence
    answer, source = _answer(evidence, texts), _source(evidence, texts)
    said = f"{answer}{source}"
    if said in shown or (shown and source is None and not evidence.excerpt):
        answer = source = None
    shown.add(said)
    details = texts.redactor.json_value(dict(evidence.details), plain_keys=PLAIN_DETAIL_KEYS)
    assert isinstance(details, dict), "details are an object"
    origin = evidence.source.request_id if evidence.source else ""
    return FindingView(
        anchor=_anchor(evidence.rule_id, f"{evidence.sink_request_id}\x00{origin}", used),
        rule=neutral.name(evidence.rule_id),
        name=rule_name(evidence.rule_id),
        summary=rule_summary(evidence.rule_id),
        kind=finding.kind.value,
        kind_words=KIND_WORDS[finding.kind],
        severity=finding.severity.value,
        chance=evidence_chance(finding),
        score=value_text(plain_json(evidence.score)),
        answer=answer,
        source=source,
        details=tuple(flat_items(details)),
    )


def _answer(evidence: Evidence, texts: _Texts) -> TextView | None:
    record = texts.records.get(evidence.sink_request_id)
    request_id, tenant = neutral.name(evidence.sink_request_id), neutral.name(evidence.sink_tenant)
    label = f"Answer to {request_id}, tenant {tenant}"
    text = record.output_text if record else None
    if text:
        span = _span_in(text, evidence.sink_span, evidence.excerpt)
        if span is None:
            return TextView(label=label, pieces=_start_of(text, texts.redactor))
        own = own_spans(text, record.own_context, span) if record and texts.is_whole else ()
        pieces = texts.redactor.pieces(text, span, own, context=texts.is_whole)
        return TextView(label=label, pieces=pieces)
    if evidence.excerpt:
        whole = Span(start=0, end=len(evidence.excerpt))
        return TextView(label=label, pieces=texts.redactor.pieces(evidence.excerpt, whole))
    if evidence.source is None:
        return None
    return TextView(label=label, missing="The text of this answer is not kept in the run.")


def _source(evidence: Evidence, texts: _Texts) -> TextView | None:
    source = evidence.source
    if source is None:
        return None
    side = "Prompt" if source.side is Side.PROMPT else "Answer"
    label = f"{side} of {neutral.name(source.request_id)}, tenant {neutral.name(source.tenant)}"
    record = texts.records.get(source.request_id)
    text = ""
    if record is not None:
        text = record.own_context if source.side is Side.PROMPT else record.output_text or ""
    if not text:
        return TextView(label=label, missing="The text of this request is not kept in the run.")
    span = _span_in(text, source.span, evidence.excerpt)
    if span is None:
        return TextView(label=label, pieces=_start_of(text, texts.redactor))
    pieces = texts.redactor.pieces(text, span, context=texts.is_whole)
    return TextView(label=label, pieces=pieces)


def _start_of(text: str, redactor: Redactor) -> tuple[Piece, ...]:
    """Return the start of a text of which nothing is known to be shared."""
    end = min(len(text), EXCERPT_CHARS)
    pieces = redactor.pieces(text, Span(start=0, end=end), context=False)
    return tuple(Piece(piece.text, "") for piece in pieces)


def _asked(record: RequestRecord | None, redactor: Redactor) -> TextView | None:
    if record is None or not record.prompt_text:
        return None
    text = record.prompt_text
    end = Span(start=max(len(text) - ASKED_CHARS, 0), end=len(text))
    pieces = redactor.pieces(text, end, context=False)
    return TextView(label="", pieces=tuple(Piece(piece.text, "") for piece in pieces))


def _facts(record: RequestRecord | None) -> tuple[tuple[str, str], ...]:
    if record is None:
        return ()
    facts = [
        ("status", record.status), ("stratum", record.stratum), ("scenario", record.scenario),
        ("model", record.model), ("replica", record.replica),
        ("prompt tokens sent", record.prompt_tokens_sent),
        ("prompt tokens reported", record.prompt_tokens),
        ("finish reason", record.finish_reason),
    ]  # fmt: skip
    return tuple(
        (name, neutral.sentence(str(value))) for name, value in facts if value not in (None, "")
    )


def _span_in(text: str, span: Span | None, excerpt: str) -> Span | None:
    """Return the given span, else where the excerpt stands, else None."""
    if span is not None and span.start < min(span.end, len(text)):
        return span
    at = text.find(excerpt) if excerpt else -1
    return Span(start=at, end=at + len(excerpt)) if at >= 0 else None


def _anchor(kind: str, identity: str, used: Counter[str]) -> str:
    """Return an id that stays the same when the run is judged again."""
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    safe_kind = "".join(char for char in kind.lower() if char.isascii() and char.isalnum())
    anchor = f"{safe_kind}-{digest}"
    used[anchor] += 1
    return anchor if used[anchor] == 1 else f"{anchor}-{used[anchor]}"


def _short_chance(finding: Finding) -> str:
    if finding.q_value is not None:
        return f"q {share(finding.q_value)}"
    chance = finding.evidence.chance
    return "" if chance is None else chance_words(chance)

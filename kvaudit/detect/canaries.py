"""KVA101: another tenant's canary stands unchanged in an answer.

A match is the whole code, or at least `PARTIAL_WORDS` consecutive words. The automaton holds the
canaries that were minted for the requests at hand and nothing else: a string that only looks like
a canary is silent, and a word list or an alphabet of one's own changes nothing.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ahocorasick_rs import AhoCorasick

from kvaudit.canary import (
    PARTIAL_WORDS,
    Canary,
    all_canaries,
    chance_of_code,
    chance_of_words,
)
from kvaudit.detect.corpus import Corpus, Detection, could_reach, first_sent, is_foreign
from kvaudit.findings import Evidence, Side, Source, Span
from kvaudit.records import RequestRecord

RULE_ID = "KVA101"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """One canary in one answer.

    Attributes:
        has_code: Whether the whole code stands there.
        words: Most consecutive words.
        span: Where the strongest part stands in the answer.
    """

    has_code: bool
    words: int
    span: Span


def find_canaries(corpus: Corpus) -> Detection:
    """Return evidence for each foreign canary in each answer, the first origin as its source."""
    carriers = _carriers(corpus.records)
    planted = all_canaries(record.canaries for record in corpus.records)
    never_sent = {
        label: canary
        for label, canary in all_canaries(twin.canaries for twin in corpus.twins).items()
        if label not in planted
    }
    sinks = corpus.sinks
    if not planted:
        return Detection(rule_id=RULE_ID, available=False, reason="no canaries were planted")
    search = _Search([*planted.values(), *never_sent.values()])
    positions = sum(len(sink.output_text or "") for sink in sinks)
    evidence: list[Evidence] = []
    alarms: set[str] = set()
    for sink in sinks:
        for label, sight in search.sights(sink).items():
            if label in never_sent:
                alarms.add(sink.request_id)
                continue
            sources = [
                record
                for record in carriers[label]
                if is_foreign(record, sink) and could_reach(record, sink)
            ]
            own = any(not is_foreign(record, sink) for record in carriers[label])
            if sources and not own:
                evidence.append(
                    _evidence(sink, planted[label], sight, sources, positions, len(planted))
                )
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(evidence),
        examined=len(sinks),
        reason="" if corpus.twins else "no never-sent twins: false alarms were not measured",
        null_alarms=len(alarms) if corpus.twins else None,
        null_trials=len(sinks) if corpus.twins else 0,
    )


class _Search:
    """All canaries of a run in one automaton."""

    def __init__(self, canaries: Iterable[Canary]) -> None:
        self._patterns: list[str] = []
        self._meaning: list[tuple[str, int]] = []  # label, index of the first word or -1 = code
        for canary in canaries:
            self._add(canary.code_text, canary.label, -1)
            self._add(canary.code, canary.label, -1)
            for start in range(len(canary.words) - PARTIAL_WORDS + 1):
                words = canary.words[start : start + PARTIAL_WORDS]
                self._add(" ".join(words), canary.label, start)
        self._automaton = AhoCorasick(self._patterns)

    def sights(self, sink: RequestRecord) -> dict[str, _Sight]:
        """Return what stands in the answer and not in the request's own context, by label."""
        answer, own_context = sink.output_text or "", sink.own_context
        found: dict[str, list[tuple[int, Span]]] = defaultdict(list)
        for index, start, end in self._automaton.find_matches_as_indexes(answer, overlapping=True):
            if self._patterns[index] not in own_context:
                label, first_word = self._meaning[index]
                found[label].append((first_word, Span(start=start, end=end)))
        return {label: _sight(matches) for label, matches in found.items()}

    def _add(self, pattern: str, label: str, first_word: int) -> None:
        self._patterns.append(pattern)
        self._meaning.append((label, first_word))


def _sight(matches: list[tuple[int, Span]]) -> _Sight:
    """Join windows of `PARTIAL_WORDS` words that follow one another into the longest run."""
    codes = [span for first_word, span in matches if first_word < 0]
    best_words, best_span = 0, None
    run_words, run_span, last = 0, None, None
    for first_word, span in sorted(
        (match for match in matches if match[0] >= 0), key=lambda match: match[1].start
    ):
        if run_span is not None and last == first_word - 1 and span.start < run_span.end:
            run_words, run_span = run_words + 1, Span(start=run_span.start, end=span.end)
        else:
            run_words, run_span = PARTIAL_WORDS, span
        last = first_word
        if run_words > best_words:
            best_words, best_span = run_words, run_span
    strongest = codes[0] if codes else best_span
    assert strongest is not None, "a sight has a match"
    return _Sight(has_code=bool(codes), words=best_words, span=strongest)


def _carriers(records: Iterable[RequestRecord]) -> dict[str, list[RequestRecord]]:
    carriers: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        for label in {canary.label for canary in record.canaries}:
            carriers[label].append(record)
    return carriers


def _evidence(
    sink: RequestRecord,
    canary: Canary,
    sight: _Sight,
    sources: list[RequestRecord],
    positions: int,
    canaries: int,
) -> Evidence:
    ordered = first_sent(sources)
    chances = []
    if sight.has_code:
        chances.append(chance_of_code(canary, positions=positions, canaries=canaries))
    if sight.words:
        chances.append(
            chance_of_words(canary, words=sight.words, positions=positions, canaries=canaries)
        )
    answer = sink.output_text or ""
    excerpt = answer[sight.span.start : sight.span.end]
    bits = sight.words * canary.word_bits
    bits += len(canary.code) * canary.code_symbol_bits if sight.has_code else 0
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=_source(ordered[0], excerpt),
        sink_span=sight.span,
        excerpt=excerpt,
        score=round(bits, 1),
        chance=min(chances),
        details={
            "canary": canary.label,
            "has_code": sight.has_code,
            "words_in_a_row": sight.words,
            "other_sources": [
                {"request_id": record.request_id, "tenant": record.tenant} for record in ordered[1:]
            ],
        },
    )


def _source(record: RequestRecord, excerpt: str) -> Source:
    start = record.prompt_text.find(excerpt)
    span = Span(start=start, end=start + len(excerpt)) if start >= 0 else None
    return Source(request_id=record.request_id, tenant=record.tenant, side=Side.PROMPT, span=span)

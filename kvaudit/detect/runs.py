"""KVA201: distinctive text of another tenant's request stands in an answer.

Exact: every run of at least `GRAM` folded characters that an answer shares with another tenant's
earlier or concurrent prompt is found. Background is taken out first: what stands in the own
context, in never-sent twins, or in the prompts of a third owner. What is left is scored in bits
under a fixed model of written text, so no candidate lends weight to itself.

`find_runs` is the seam: records and twins in, `Evidence` out; how runs are found may change.
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvaudit.detect.corpus import Corpus, Detection, could_reach, first_sent, is_foreign
from kvaudit.findings import Evidence, Side, Source, Span
from kvaudit.records import RequestRecord, Role

RULE_ID = "KVA201"
GRAM = 16  # folded characters
RUN_BITS_MIN = 12.0  # weaker runs are not reported at all

# Bits per character: printed English carries about 1 (Shannon 1951); drawn codes and numbers more,
# set below their true 3.3 to 5 so that half-predictable ids are not overrated.
LETTER_BITS = 1.0
VALUE_BITS = 3.0
IDEOGRAPH_BITS = 4.0
IDEOGRAPHS_FROM = 0x2E80
VALUE_LENGTH_MIN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Text in lower case with single spaces, and where each character came from.

    Attributes:
        text: The folded text.
        offsets: Index in the original of each folded character.
    """

    text: str
    offsets: tuple[int, ...]

    def span(self, start: int, end: int) -> Span:
        """Return the span of the original text behind folded characters [start, end)."""
        return Span(start=self.offsets[start], end=self.offsets[end - 1] + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A shared run: answer[start:end] stands in the source's prompt.

    Attributes:
        bits: Weight of its distinctive part.
        source: The request whose prompt holds it.
    """

    start: int
    end: int
    bits: float
    source: RequestRecord


@dataclass(slots=True)
class _Hits:
    """Where the grams of one answer stand in other texts.

    Attributes:
        own: Answer positions whose gram stands in the own context.
        twin: The same for never-sent twins, by twin.
        foreign: The same for other owners' prompts, by index of the record.
    """

    own: set[int] = field(default_factory=set)
    twin: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    foreign: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


def find_runs(corpus: Corpus) -> Detection:
    """Return the strongest foreign run of each answer, with the first request that holds it."""
    sinks = [sink for sink in corpus.sinks if len(sink.output_text or "") >= GRAM]
    if not sinks:
        return Detection(rule_id=RULE_ID, available=False, reason="no answer is long enough")
    answers = [fold(sink.output_text or "") for sink in sinks]
    prompts = [fold(record.own_context).text for record in corpus.records]
    twins = [fold(twin.prompt_text).text for twin in corpus.twins]
    hits = _all_hits(corpus, sinks, answers, prompts, twins)
    answer_size = sum(len(answer.text) for answer in answers)
    text_size = answer_size * max(1, sum(len(prompt) for prompt in prompts))
    evidence: list[Evidence] = []
    twin_bits: list[float] = []
    for sink, answer, hit in zip(sinks, answers, hits, strict=True):
        owners = {index: corpus.records[index].owner for index in hit.foreign}
        runs = _foreign_runs(corpus, answer, hit, owners, prompts)
        if runs:
            evidence.append(_evidence(sink, answer, runs, text_size))
        twin_bits.append(_best_twin_bits(answer, hit, twins))
    highest = max(twin_bits, default=0.0)
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(_with_null(item, highest) for item in evidence),
        examined=len(sinks),
        reason="" if twins else "no never-sent twins: false alarms were not measured",
        null_alarms=sum(bits >= RUN_BITS_MIN for bits in twin_bits) if twins else None,
        null_trials=len(sinks) if twins else 0,
    )


def fold(text: str) -> Folded:
    """Return `text` in lower case, white space runs as one space."""
    chars: list[str] = []
    offsets: list[int] = []
    for index, char in enumerate(text):
        if char.isspace():
            if chars and chars[-1] == " ":
                continue
            chars.append(" ")
            offsets.append(index)
        else:
            lowered = char.lower()
            chars.append(lowered if len(lowered) == 1 else char)
            offsets.append(index)
    return Folded(text="".join(chars), offsets=tuple(offsets))


def char_bits(text: str) -> list[float]:
    """Return the weight of each character under the fixed model, in bits."""
    bits = [IDEOGRAPH_BITS if ord(char) >= IDEOGRAPHS_FROM else LETTER_BITS for char in text]
    start = 0
    for part in text.split(" "):
        letters = [char for char in part if char.isalnum()]
        if len(letters) >= VALUE_LENGTH_MIN and any(char.isdigit() for char in letters):
            for index in range(start, start + len(part)):
                bits[index] = VALUE_BITS if text[index].isalnum() else 0.0
        start += len(part) + 1
    return bits


def _all_hits(
    corpus: Corpus,
    sinks: list[RequestRecord],
    answers: list[Folded],
    prompts: list[str],
    twins: list[str],
) -> list[_Hits]:
    """Scan every prompt and twin once against the grams of all answers."""
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for sink_index, answer in enumerate(answers):
        for start in range(len(answer.text) - GRAM + 1):
            postings[answer.text[start : start + GRAM]].append((sink_index, start))
    hits = [_Hits() for _ in sinks]
    for index, prompt in enumerate(prompts):
        record = corpus.records[index]
        for sink_index, start in _shared(prompt, postings):
            sink = sinks[sink_index]
            if record.request_id == sink.request_id or not is_foreign(record, sink):
                hits[sink_index].own.add(start)
            elif could_reach(record, sink):
                hits[sink_index].foreign[index].add(start)
    for index, twin in enumerate(twins):
        for sink_index, start in _shared(twin, postings):
            hits[sink_index].twin[index].add(start)
    return hits


def _shared(text: str, postings: Mapping[str, list[tuple[int, int]]]) -> Iterable[tuple[int, int]]:
    seen: set[str] = set()
    for start in range(len(text) - GRAM + 1):
        gram = text[start : start + GRAM]
        if gram in postings and gram not in seen:
            seen.add(gram)
            yield from postings[gram]


def _foreign_runs(
    corpus: Corpus,
    answer: Folded,
    hit: _Hits,
    owners: Mapping[int, str],
    prompts: list[str],
) -> list[_Run]:
    twin_positions = set().union(*hit.twin.values()) if hit.twin else set()
    by_owner: dict[str, set[int]] = defaultdict(set)
    for index, positions in hit.foreign.items():
        by_owner[owners[index]] |= positions
    runs = []
    for index, positions in hit.foreign.items():
        others = [held for owner, held in by_owner.items() if owner != owners[index]]
        background = hit.own | twin_positions | set().union(*others)
        best = _best_run(answer.text, positions, background, prompts[index])
        if best is not None and best[2] >= RUN_BITS_MIN:
            start, end, bits = best
            runs.append(_Run(start=start, end=end, bits=bits, source=corpus.records[index]))
    return runs


def _best_twin_bits(answer: Folded, hit: _Hits, twins: list[str]) -> float:
    """Weigh twin runs as foreign ones are weighed, with sent prompts as their background."""
    sent = set().union(*hit.foreign.values()) if hit.foreign else set()
    best = 0.0
    for index, positions in hit.twin.items():
        others = set().union(*(held for other, held in hit.twin.items() if other != index))
        run = _best_run(answer.text, positions, hit.own | sent | others, twins[index])
        best = max(best, run[2] if run is not None else 0.0)
    return best


def _best_run(
    answer: str, positions: set[int], background: set[int], source: str
) -> tuple[int, int, float] | None:
    """Return start, end and bits of the shared run whose distinctive part weighs most."""
    weights = char_bits(answer)
    known = sorted(background)
    best: tuple[int, int, float] | None = None
    for start, end in _exact_runs(answer, sorted(positions), source):
        bits = sum(weights[index] for index in range(start, end) if not _is_covered(index, known))
        if best is None or bits > best[2]:
            best = (start, end, bits)
    return best


def _exact_runs(answer: str, positions: list[int], source: str) -> Iterable[tuple[int, int]]:
    """Join neighbouring grams into runs that stand in the source as a whole."""
    start: int | None = None
    end = 0
    for position in positions:
        if start is not None and (
            position > end - GRAM + 1 or answer[start : position + GRAM] not in source
        ):
            yield start, end
            start = None
        if start is None:
            start = position
        end = position + GRAM
    if start is not None:
        yield start, end


def _is_covered(index: int, starts: list[int]) -> bool:
    """Whether a background gram lies over this character."""
    at = bisect.bisect_right(starts, index)
    return at > 0 and starts[at - 1] > index - GRAM


def _evidence(sink: RequestRecord, answer: Folded, runs: list[_Run], text_size: int) -> Evidence:
    strongest = max(run.bits for run in runs)
    best = [run for run in runs if run.bits == strongest]
    ordered = first_sent({run.source.request_id: run.source for run in best}.values())
    source = ordered[0]
    run = next(run for run in best if run.source is source)
    span = answer.span(run.start, run.end)
    excerpt = (sink.output_text or "")[span.start : span.end]
    held = fold(source.own_context)
    at = held.text.find(answer.text[run.start : run.end])
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=Source(
            request_id=source.request_id,
            tenant=source.tenant,
            side=Side.PROMPT,
            span=held.span(at, at + run.end - run.start) if at >= 0 else None,
        ),
        sink_span=span,
        excerpt=excerpt,
        score=round(run.bits, 1),
        chance=min(1.0, math.exp2(min(0.0, math.log2(text_size) - run.bits))),
        details={
            "run_characters": run.end - run.start,
            "from_fill": source.role is Role.FILL,
            "other_sources": [
                {"request_id": record.request_id, "tenant": record.tenant} for record in ordered[1:]
            ],
        },
    )


def _with_null(evidence: Evidence, highest_twin_bits: float) -> Evidence:
    """Take the computed chance back where a never-sent text reached the same score."""
    details = {**evidence.details, "highest_twin_bits": round(highest_twin_bits, 1)}
    chance = evidence.chance if evidence.score > highest_twin_bits else None
    return Evidence(
        rule_id=evidence.rule_id,
        sink_request_id=evidence.sink_request_id,
        sink_tenant=evidence.sink_tenant,
        source=evidence.source,
        sink_span=evidence.sink_span,
        excerpt=evidence.excerpt,
        score=evidence.score,
        chance=chance,
        details=details,
    )

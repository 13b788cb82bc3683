"""KVA102: another tenant's canary stands in an answer in disguise.

Undone are case, spacing, hyphens, NFKC, a masked middle, one or two edits, seams between stream
chunks, spelled digits and base64 (`kvaudit.detect.folds`). A match is the code within `EDITS_MAX`
edits, or `OUTER` characters or more at both of its ends with mask characters between, or
`PARTIAL_WORDS` words or more in order; and it is nearer to the foreign canary than to every own one
by `NEARER_BY` edits. What KVA101 reports, unchanged, is left to it. Only minted canaries are looked
for: a string that merely looks like one is silent.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ahocorasick_rs import AhoCorasick

from kvaudit.canary import (
    CODE_LENGTH,
    PARTIAL_WORDS,
    Canary,
    all_canaries,
    chance_of_code,
    chance_of_words,
    edit_distance,
)
from kvaudit.detect.canaries import find_canaries
from kvaudit.detect.corpus import Corpus, Detection, could_reach, first_sent, is_foreign
from kvaudit.detect.folds import (
    MASK,
    View,
    base64_views,
    masked_view,
    plain_view,
    spelled_view,
    squeeze,
    squeezed_view,
)
from kvaudit.findings import Evidence, Side, Source, Span
from kvaudit.records import RequestRecord

RULE_ID = "KVA102"
EDITS_MAX = 2
NEARER_BY = 3
OUTER = 6
FOLDS = 8  # so many ways to look: the chance of an accident is multiplied by it
WINDOW_WORDS = 24  # words in order lie within so many words of the answer
WORD_EDITS_MAX = 1  # the list's words are 3 edits apart, so one edit leaves a word known
SPELLINGS = 512  # within one edit of a word, at most
_PIECES = EDITS_MAX + 1  # of so many pieces of a code, two edits leave one whole
_MASKED_TAIL = re.compile(rf"([a-z0-9]{{0,10}})\{MASK}{{1,16}}([a-z0-9]{{{OUTER},10}})")
_WORD = re.compile(r"[a-z]+")


class Match(NamedTuple):
    """One disguised canary in one answer.

    Attributes:
        label: The canary.
        fold: What was undone, in words.
        text: What stands there, folded.
        span: Where in the answer.
        edits: Edits between it and the canary.
        words: Words in order; 0 for a code.
        outer: Characters at both ends of a masked code; 0 for others.
        gaps: Words that stand between the words in order, there or in the canary.
    """

    label: str
    fold: str
    text: str
    span: Span
    edits: int
    words: int = 0
    outer: int = 0
    gaps: int = 0


def find_folded_canaries(corpus: Corpus) -> Detection:
    """Return the strongest disguised match of each foreign canary in each answer."""
    planted = all_canaries(record.canaries for record in corpus.records)
    if not planted:
        return Detection(rule_id=RULE_ID, available=False, reason="no canaries were planted")
    never_sent = {
        label: canary
        for label, canary in all_canaries(twin.canaries for twin in corpus.twins).items()
        if label not in planted
    }
    carriers: dict[str, list[RequestRecord]] = defaultdict(list)
    own: dict[str, dict[str, Canary]] = defaultdict(dict)
    for record in corpus.records:
        for canary in record.canaries:
            carriers[canary.label].append(record)
            own[record.owner][canary.label] = canary
    search = CanarySearch([*planted.values(), *never_sent.values()])
    plain = {
        (item.sink_request_id, item.details["canary"]) for item in find_canaries(corpus).evidence
    }
    positions = sum(len(sink.output_text or "") for sink in corpus.sinks)
    evidence: list[Evidence] = []
    alarms: set[str] = set()
    for sink in corpus.sinks:
        found = search.matches(sink, own=tuple(own[sink.owner].values()))
        alarms |= {sink.request_id for label in found if label in never_sent}
        for label, match in found.items():
            sources = [
                record
                for record in carriers[label]
                if is_foreign(record, sink) and could_reach(record, sink)
            ]
            if sources and (sink.request_id, label) not in plain:
                evidence.append(
                    _evidence(sink, planted[label], match, sources, positions, len(planted))
                )
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(evidence),
        examined=len(corpus.sinks),
        reason="" if corpus.twins else "no never-sent twins: false alarms were not measured",
        null_alarms=len(alarms) if corpus.twins else None,
        null_trials=len(corpus.sinks) if corpus.twins else 0,
    )


class CanarySearch:
    """Looks for disguised canaries; the codes' pieces and ends lie in one automaton each."""

    def __init__(self, canaries: Sequence[Canary]) -> None:
        self._canaries = {canary.label: canary for canary in canaries}
        self._piece_of: list[tuple[str, int]] = []  # label, offset of the piece in the code
        pieces = []
        heads = []
        runs = []
        self._run_of: list[str] = []
        self._labels = [canary.label for canary in canaries]
        self._word_places: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for canary in canaries:
            code = canary.code.casefold()
            for number in range(_PIECES):
                start, end = (len(code) * at // _PIECES for at in (number, number + 1))
                pieces.append(code[start:end])
                self._piece_of.append((canary.label, start))
            heads.append(code[:OUTER])
            for start in range(len(canary.words) - PARTIAL_WORDS + 1):
                runs.append("".join(canary.words[start : start + PARTIAL_WORDS]).casefold())
                self._run_of.append(canary.label)
            for index, word in enumerate(canary.words):
                self._word_places[word.casefold()].append((canary.label, index))
        self._pieces = AhoCorasick(pieces)
        self._heads = AhoCorasick(heads)
        self._runs = AhoCorasick(runs)
        self._known_words: dict[str, str | None] = {word: word for word in self._word_places}

    def matches(self, sink: RequestRecord, *, own: Sequence[Canary]) -> dict[str, Match]:
        """Return the strongest match of each canary that is not an own one, by label."""
        answer = sink.output_text or ""
        plain = plain_view(answer)
        best: dict[str, Match] = {}
        for match in self._all_matches(answer, plain):
            canary = self._canaries[match.label]
            if any(held.label == match.label for held in own):
                continue
            if not _is_nearer(match, canary, own):
                continue
            before = best.get(match.label)
            if before is None or _strength(match) > _strength(before):
                best[match.label] = match
        if not best:
            return best
        context = squeeze(sink.own_context)
        return {label: match for label, match in best.items() if match.text not in context}

    def _all_matches(self, answer: str, plain: View) -> Iterable[Match]:
        squeezed = squeezed_view(plain)
        yield from self._codes(squeezed)
        yield from self._phrases(plain)
        yield from self._squeezed_phrases(squeezed)
        spelled = spelled_view(plain)
        if spelled is not None:
            yield from self._codes(spelled)
        masked = masked_view(plain)
        if masked is not None:
            yield from self._masked(masked)
        for decoded in base64_views(answer):
            again = squeezed_view(decoded)
            yield from self._codes(View(name="base64", text=again.text, offsets=again.offsets))
            yield from self._phrases(decoded)

    def _codes(self, view: View) -> Iterable[Match]:
        """Yield each code within `EDITS_MAX` edits, found by a piece that is whole."""
        seen: set[tuple[str, int]] = set()
        for index, start, _ in self._pieces.find_matches_as_indexes(view.text, overlapping=True):
            label, offset = self._piece_of[index]
            if (label, start - offset) in seen:
                continue
            seen.add((label, start - offset))
            match = _nearest(view, self._canaries[label], start - offset)
            if match is not None:
                yield match

    def _masked(self, view: View) -> Iterable[Match]:
        for index, start, end in self._heads.find_matches_as_indexes(view.text, overlapping=True):
            label = self._labels[index]
            code = self._canaries[label].code.casefold()
            found = _MASKED_TAIL.match(view.text, end)
            if found is None or not code.startswith(code[:OUTER] + found[1]):
                continue
            sizes = range(len(found[2]), OUTER - 1, -1)
            tail = next((size for size in sizes if code.endswith(found[2][:size])), 0)
            head = OUTER + len(found[1])
            if tail >= OUTER and head + tail <= len(code):
                stop = found.start(2) + tail
                yield Match(
                    label=label,
                    fold=view.name,
                    text=view.text[start:stop],
                    span=view.span(start, stop),
                    edits=0,
                    outer=head + tail,
                )

    def _phrases(self, view: View) -> Iterable[Match]:
        """Yield `PARTIAL_WORDS` or more words of one canary in order, each within an edit."""
        places: dict[str, list[tuple[int, int, int, int, int]]] = defaultdict(list)
        for number, word in enumerate(_WORD.finditer(view.text)):
            known = self._known(word[0])
            if known is None:
                continue
            edits = edit_distance(known, word[0])
            for label, index in self._word_places[known]:
                places[label].append((number, index, edits, word.start(), word.end()))
        for label, held in places.items():
            if len(held) >= PARTIAL_WORDS:
                chain = _longest_chain(held)
                edits = sum(item[2] for item in chain)
                if len(chain) >= PARTIAL_WORDS and edits <= EDITS_MAX:
                    text = "".join(view.text[item[3] : item[4]] for item in chain)
                    ranges = (chain[-1][at] - chain[0][at] + 1 for at in (0, 1))
                    name = view.name if not edits else f"{view.name}, {edits} edits"
                    yield Match(
                        label=label, fold=name, text=text, edits=edits, words=len(chain),
                        span=view.span(chain[0][3], chain[-1][4]),
                        gaps=sum(size - len(chain) for size in ranges),
                    )  # fmt: skip

    def _squeezed_phrases(self, view: View) -> Iterable[Match]:
        """Yield words run together, or torn apart by the seams of a stream."""
        for index, start, end in self._runs.find_matches_as_indexes(view.text, overlapping=True):
            yield Match(
                label=self._run_of[index], fold=view.name, text=view.text[start:end], edits=0,
                words=PARTIAL_WORDS, span=view.span(start, end),
            )  # fmt: skip

    def _known(self, word: str) -> str | None:
        """Return the list's word that this one is, within `WORD_EDITS_MAX` edits."""
        if word not in self._known_words:
            if len(self._known_words) > 200_000:  # a hostile answer must not fill the memory
                return None
            near = (
                known
                for known in self._word_places
                if abs(len(known) - len(word)) <= WORD_EDITS_MAX
                and edit_distance(known, word) <= WORD_EDITS_MAX
            )
            self._known_words[word] = next(near, None) if len(word) >= 3 else None
        return self._known_words[word]


def infix_distance(pattern: str, text: str) -> int:
    """Return the edits between `pattern` and the stretch of `text` that is nearest to it."""
    row = [0] * (len(text) + 1)
    for depth, char in enumerate(pattern, start=1):
        diagonal, row[0] = row[0], depth
        for at, other in enumerate(text, start=1):
            diagonal, row[at] = row[at], min(
                row[at] + 1, row[at - 1] + 1, diagonal + (char != other)
            )  # fmt: skip
    return min(row)


def _nearest(view: View, canary: Canary, expected: int) -> Match | None:
    """Return the stretch around `expected` that is nearest to the code, within the edits."""
    code = canary.code.casefold()
    best: tuple[int, int, int, int] | None = None
    for start in range(max(0, expected - EDITS_MAX), max(0, expected) + EDITS_MAX + 1):
        for size in range(len(code) - EDITS_MAX, len(code) + EDITS_MAX + 1):
            if start + size > len(view.text):
                break
            edits = edit_distance(code, view.text[start : start + size])
            if edits <= EDITS_MAX and (best is None or (edits, abs(size - CODE_LENGTH)) < best[:2]):
                best = (edits, abs(size - CODE_LENGTH), start, start + size)
    if best is None:
        return None
    edits, _, start, stop = best
    name = view.name if not edits else f"{view.name}, {edits} edits"
    return Match(
        label=canary.label, fold=name, text=view.text[start:stop], span=view.span(start, stop),
        edits=edits,
    )  # fmt: skip


def _longest_chain(
    held: Sequence[tuple[int, int, int, int, int]],
) -> list[tuple[int, int, int, int, int]]:
    """Return the longest chain of words in the canary's order within `WINDOW_WORDS`."""
    best: list[tuple[int, int, int, int, int]] = []
    for first, item in enumerate(held):
        chain = [item]
        for other in held[first + 1 :]:
            if other[0] - item[0] >= WINDOW_WORDS:
                break
            if other[1] > chain[-1][1]:
                chain.append(other)
        if len(chain) > len(best):
            best = chain
    return best


def _is_nearer(match: Match, canary: Canary, own: Sequence[Canary]) -> bool:
    """Whether it is nearer to the foreign canary than to every own one by `NEARER_BY` edits."""
    if match.outer:
        head, tail = match.text.split(MASK)[0], match.text.rsplit(MASK, 1)[1]
        return all(
            edit_distance(head, held.code.casefold()[: len(head)])
            + edit_distance(tail, held.code.casefold()[-len(tail) :])
            >= NEARER_BY
            for held in own
        )
    for held in own:
        # Words may skip some of the canary's own, so they are compared where they stand.
        against = "".join(held.words) if match.words else held.code
        if infix_distance(match.text, against.casefold()) - match.edits < NEARER_BY:
            return False
    assert canary.label == match.label, "the match of another canary"
    return True


def _strength(match: Match) -> tuple[float, int]:
    return match.words * 9.0 + (0 if match.words else (match.outer or CODE_LENGTH) * 5.0), (
        -match.edits
    )


def _chance(match: Match, canary: Canary, *, positions: int, canaries: int) -> float:
    if match.words:
        whole = chance_of_words(canary, words=match.words, positions=positions, canaries=canaries)
        others = float(SPELLINGS) ** match.edits * float(WINDOW_WORDS) ** match.gaps
        return min(1.0, whole * FOLDS * others)
    if match.outer:
        bits = match.outer * canary.code_symbol_bits
        return min(1.0, FOLDS * CODE_LENGTH * positions * canaries * math.exp2(-bits))
    code = chance_of_code(canary, positions=positions, canaries=canaries, edits=match.edits)
    return min(1.0, FOLDS * code)


def _evidence(
    sink: RequestRecord,
    canary: Canary,
    match: Match,
    sources: list[RequestRecord],
    positions: int,
    canaries: int,
) -> Evidence:
    ordered = first_sent(sources)
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=sink.request_id,
        sink_tenant=sink.tenant,
        source=Source(request_id=ordered[0].request_id, tenant=ordered[0].tenant, side=Side.PROMPT),
        sink_span=match.span,
        excerpt=(sink.output_text or "")[match.span.start : match.span.end],
        score=round(_strength(match)[0], 1),
        chance=_chance(match, canary, positions=positions, canaries=canaries),
        details={
            "canary": canary.label,
            "fold": match.fold,
            "edits": match.edits,
            "words_in_order": match.words,
            "outer_characters": match.outer,
            "other_sources": [
                {"request_id": record.request_id, "tenant": record.tenant} for record in ordered[1:]
            ],
        },
    )

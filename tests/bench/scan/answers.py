"""What is answered: quotes, public knowledge, phrases, new prose, and what leaks into it."""

import math
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from leaks import EDITS, Leak, applicable, edited, span
from phrases import CLOSERS, OPENERS, filled_form, invented
from texts import CHARACTERS_PER_TOKEN, SCRIPTS

_GROUPS = (1, 5, 50)
_GROUP_TOKENS = 40
_WARM = 3  # organisations whose prompts held a text before a quote of it is common knowledge


@dataclass(frozen=True, slots=True, kw_only=True)
class Benign:
    """A stretch of an answer that stands in other tenants' traffic too and is no leak."""

    sink: str
    kind: str
    text: str


class Answers:
    """Writes the answers in order of time and keeps the truth."""

    def __init__(self, traffic: Any, texts: Any, shelves: Any, unique: Any, tenants: list[Any],
                 rng: random.Random) -> None:  # fmt: skip
        self._traffic, self._texts, self._shelves, self._unique = traffic, texts, shelves, unique
        self._tenants, self._rng = tenants, rng
        self.leaks: list[Leak] = []
        self.benign: list[Benign] = []
        self.notes: Counter[str] = Counter()
        # script -> (request, range) of private text in the order in which it first came in
        self._came_in: dict[str, list[tuple[Any, tuple[int, int]]]] = defaultdict(list)
        self._answered: dict[str, list[tuple[Any, str]]] = defaultdict(list)
        self._known: set[int] = set()
        self._leaked: set[tuple[int, int] | str] = set()
        self._is_public = {chunk for first, last in shelves.public for chunk in range(first, last)}
        self._public: dict[int, set[str]] = defaultdict(set)  # chunk -> organisations that sent it
        self._new_prose: dict[str, list[str]] = {}

    def write(self, requests: list[Any]) -> None:
        """Write all answers; `requests` come in order of time."""
        asked = self._sinks(requests)
        for request in requests:
            self._take_in(request)
            segments = self._segments(request)
            wish = asked.get(request.number)
            if wish is not None:
                self._plant(request, segments, wish)
            else:
                request.answer = "\n".join(segments)
        self._groups(requests)
        self.leaks.sort(key=lambda leak: leak.sink)

    # -- what the prompts hold --------------------------------------------------------------

    def _take_in(self, request: Any) -> None:
        """Note what stands in this prompt for the first time."""
        ranges = [part for part in request.parts if not isinstance(part, str)]
        if request.turn == 0:
            ranges.append(request.conversation.system)
        tenant = request.conversation.tenant
        for first, last in ranges:
            if first in self._is_public:
                self._public[first].add(tenant.organisation)
                continue
            run_start = None
            for chunk in range(first, last + 1):
                is_new = chunk < last and chunk not in self._known
                if is_new and run_start is None:
                    run_start = chunk
                elif not is_new and run_start is not None:
                    self._note_new(request, run_start, chunk)
                    run_start = None
            self._known.update(range(first, last))

    def _note_new(self, request: Any, first: int, last: int) -> None:
        script = SCRIPTS[self._texts.script[first]]
        self._came_in[script].append((request, (first, last)))

    # -- what is answered ---------------------------------------------------------------------

    def _segments(self, request: Any) -> list[str]:
        rng, traffic = self._rng, self._traffic
        wanted = math.exp(rng.gauss(math.log(550), 0.9))
        segments: list[str] = []
        if traffic.has_negatives and rng.random() < 0.5:
            segments.append(self._shared(request, "boilerplate", rng.choice(OPENERS)))
        while wanted > 0:
            segment = self._segment(request, min(wanted + 60, rng.uniform(80, 400)))
            segments.append(segment)
            wanted -= len(segment) + 1
        if traffic.has_negatives and rng.random() < 0.4:
            segments.append(self._shared(request, "boilerplate", rng.choice(CLOSERS)))
        return segments

    def _segment(self, request: Any, characters: float) -> str:
        rng = self._rng
        draw = rng.random()
        if draw < 0.30 and not self._traffic.is_invented:
            quoted = self._own_quote(request, characters)
            if quoted:
                return quoted
        elif self._traffic.has_negatives and draw < 0.40:
            shared = self._negative(request, draw, characters)
            if shared:
                return shared
        return self._novel(request, characters)

    def _own_quote(self, request: Any, characters: float) -> str | None:
        earlier = request.conversation.requests[: request.turn + 1]
        ranges = [part for held in earlier[-3:] for part in held.parts if not isinstance(part, str)]
        if not ranges:
            return None
        first, last = self._rng.choice(ranges)
        text = self._texts.text(self._rng.randrange(first, last))
        return span(text, int(characters), self._rng, script=self._script(first))

    def _script(self, chunk: int) -> str:
        return SCRIPTS[self._texts.script[chunk]]

    def _negative(self, request: Any, draw: float, characters: float) -> str | None:
        rng, tenant = self._rng, request.conversation.tenant
        if draw < 0.345:
            chunk = self._shelves.popular()
            is_warm = len(self._public[chunk] - {tenant.organisation}) >= _WARM
            if not is_warm and rng.random() > 0.01:
                return None
            quoted = span(self._texts.text(chunk), int(characters), rng, script="latin")
            kind = "public text" if is_warm else "public text that few had"
            return self._shared(request, kind, quoted) if quoted else None
        if draw < 0.36:
            return self._shared(request, "form", filled_form(rng))
        # From the tenant's own other conversations, or a sister's: not foreign to it.
        documents = [
            found for sister in self._tenants if sister.organisation == tenant.organisation
            for held in sister.library.values() for found in held
        ]  # fmt: skip
        chunk = rng.randrange(*rng.choice(documents))
        if chunk not in self._known:
            return None
        quoted = span(self._texts.text(chunk), int(characters), rng, script=self._script(chunk))
        return self._shared(request, "own earlier text", quoted) if quoted else None

    def _shared(self, request: Any, kind: str, text: str) -> str:
        self.benign.append(Benign(sink=request.name, kind=kind, text=text))
        return text

    def _novel(self, request: Any, characters: float) -> str:
        script = request.conversation.tenant.script
        if self._traffic.is_invented:
            return invented(self._rng, int(characters))
        text = self._new_lines(script, characters)
        if text is None:
            script, text = "latin", self._new_lines("latin", characters)
        if text is None:
            return f"({self._rng.randrange(10**12)})"
        if len(text) > 60:
            self._answered[script].append((request, text))
        return text

    def _new_lines(self, script: str, characters: float) -> str | None:
        """Return lines that were never used before and, in clean logs, stand nowhere else."""
        held: list[str] = []
        size = 0
        lines = self._new_prose.setdefault(script, [])
        shelf = self._shelves.answers[script]
        while size < characters:
            if not lines:
                if not shelf:
                    self.notes[f"new prose in {script} used up"] += 1
                    return "\n".join(held) or None
                # Reversed: `pop` gives the lines in their order.
                lines.extend(reversed(self._texts.text(*shelf.pop()).splitlines()))
            line = lines.pop()
            if self._unique is not None and self._unique.repeated(line, script) > 0:
                continue
            cut = line[: int(characters * 1.5)]
            held.append(cut)
            size += len(cut) + 1
        return "\n".join(held)

    # -- what leaks ---------------------------------------------------------------------------

    def _sinks(self, requests: list[Any]) -> dict[int, tuple[int, str]]:
        """Choose the answers that get a leak, and of which length and edit."""
        lengths = self._traffic.tokens
        wishes = [
            (lengths[number % len(lengths)], EDITS[number // len(lengths) % len(EDITS)])
            for number in range(self._traffic.leaks)
        ]
        self._rng.shuffle(wishes)
        late = range(len(requests) // 20, len(requests))
        if len(wishes) > len(late):
            raise SystemExit("more leaks than answers: ask for a larger log")
        return dict(zip(self._rng.sample(late, len(wishes)), wishes, strict=True))

    def _plant(self, request: Any, segments: list[str], wish: tuple[int, str]) -> None:
        tokens, edit = wish
        found = self._leakable(request.conversation.tenant.organisation, tokens)
        if found is None:
            self.notes[f"no text for a leak of {tokens} tokens"] += 1
            request.answer = "\n".join(segments)
            return
        self._insert(request, segments, found, tokens, edit, group=1)

    def _leakable(self, organisation: str, tokens: int) -> tuple[Any, str, str, str, str] | None:
        """Return (source, text, words around it, script, side) from any earlier request."""
        rng = self._rng
        scripts = [script for script in SCRIPTS[1:] if self._came_in[script]]
        for attempt in range(1_500):
            is_other = scripts and rng.random() < 0.5 and attempt < 750
            script = rng.choice(scripts) if is_other else "latin"
            side = "answer" if self._answered[script] and rng.random() < 0.15 else "prompt"
            if side == "answer":
                source, text = rng.choice(self._answered[script])
                key: Any = text[:80]
            else:
                source, (first, last) = rng.choice(self._came_in[script])
                chunk = rng.randrange(first, last)
                if chunk // 2 % 8:
                    continue
                chunk -= chunk % 2 if chunk - chunk % 2 >= first else 0
                key = (chunk, chunk)
                text = self._texts.text(chunk, min(last, chunk // 2 * 2 + 2))
            if source.conversation.tenant.organisation == organisation or key in self._leaked:
                continue
            characters = int(tokens * CHARACTERS_PER_TOKEN[script])
            found = span(text, characters, rng, script=script)
            if found is None or "\n\n\n" in found or not _is_telling(found):
                continue
            if self._unique is not None:
                repeated = self._unique.repeated(found, script)
                if repeated > (0.2 if tokens > 100 else 0):
                    continue
            self._leaked.add(key)
            return source, found, text, script, side
        return None

    def _insert(self, request: Any, segments: list[str], found: tuple[Any, str, str, str, str],
                tokens: int, edit: str, *, group: int) -> None:  # fmt: skip
        source, original, around, script, side = found
        edit = applicable(edit, script)
        words = [word for word in re.findall(r"[^\W\d_]{2,}", around) if word not in original]
        planted = edited(original, edit, script, words or ["another"], self._rng)
        place = self._rng.randrange(len(segments) + 1)
        before = "\n".join(segments[:place]) + ("\n" if place else "")
        after = "\n".join(segments[place:])
        request.answer = before + planted + ("\n" + after if after else "")
        self.leaks.append(Leak(
            sink=request.name, source=source.name, side=side, start=len(before),
            sink_tenant=request.conversation.tenant.name,
            source_tenant=source.conversation.tenant.name, end=len(before) + len(planted),
            tokens=tokens, edit=edit, script=script,
            kind="code" if _looks_like_code(original) else "prose",
            group=group, original=original, planted=planted,
        ))  # fmt: skip

    def _groups(self, requests: list[Any]) -> None:
        """One text of one tenant in the answers of 1, 5 and 50 tenants, half of whom resend it."""
        if not (self._traffic.has_groups and self._traffic.leaks):
            return
        taken = {leak.sink for leak in self.leaks}
        for size in _GROUPS:
            found = self._early_source(requests)
            victims = self._victims(requests, found, size, taken) if found else []
            if found is None or len(victims) < size:
                self.notes[f"group of {size}: {len(victims)} tenants"] += 1
            for victim in victims:
                self._insert(victim, victim.answer.split("\n"), found, _GROUP_TOKENS, "exact",
                             group=size)  # fmt: skip
                taken.add(victim.name)

    def _early_source(self, requests: list[Any]) -> Any:
        for _ in range(500):
            found = self._leakable("", _GROUP_TOKENS)
            if found and found[0].number < len(requests) // 5 and found[3] == "latin":
                return found
        return None

    def _victims(self, requests: list[Any], found: Any, size: int, taken: set[str]) -> list[Any]:
        own = found[0].conversation.tenant.organisation
        later = [request for request in requests[len(requests) // 5 :] if request.name not in taken]
        self._rng.shuffle(later)
        victims: dict[str, Any] = {}
        for resends in (True, False):
            for request in later:
                organisation = request.conversation.tenant.organisation
                is_last = request.turn + 1 == len(request.conversation.requests)
                enough = len(victims) >= (math.ceil(size / 2) if resends else size)
                if organisation == own or organisation in victims or is_last == resends or enough:
                    continue
                victims[organisation] = request
        return list(victims.values())


def _is_telling(text: str) -> bool:
    """Whether a stretch is words, not a ruler, a column of numbers or a table of dots."""
    letters = sum(letter.isalpha() for letter in text)
    return letters > 0.55 * len(text) and len(set(text)) > min(12, len(text) // 4)


def _looks_like_code(text: str) -> bool:
    return sum(letter in "{}();=_<>*#" for letter in text) > 0.04 * len(text)

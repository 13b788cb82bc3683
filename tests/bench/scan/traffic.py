"""The plan of a log: who asks what when, what is answered, what leaks; texts by reference.

Prompts are ranges of chunks until they are written (`writing.py`); answers are written here, in
order of time, since a leak may come from any earlier request. Every private document belongs to
one tenant, and every passage of new prose stands in one answer.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from answers import Answers, Benign
from leaks import LENGTHS, Leak
from phrases import QUESTIONS, filled_form
from texts import CODE, PROSE, SCRIPTS, Texts
from unique import Unique

SECTION_CHUNKS = 60
START_US = 1_790_000_000_000_000
SPAN_US = 3 * 86_400 * 1_000_000
_SHARES = (("long", 0.01), ("agent", 0.14), ("rag", 0.45), ("chat", 0.40))
_ANSWER_SHARE, _PUBLIC_SHARE = 0.28, 1 / 12
Range = tuple[int, int]  # chunks, from first to before last


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What to generate: everything follows from it and the texts.

    Attributes:
        size: Bytes of text over all requests, resent text counted as often as it was sent.
        leaks: Leaks of their own; the groups of 1, 5 and 50 tenants come on top.
        is_clean: New prose and leaked stretches stand nowhere else in the texts.
        has_negatives: Boilerplate, forms, quotes of public text, of a sister tenant's documents.
        is_invented: All prose of answers is made of invented words, and nothing is quoted:
            nothing can match by chance.
        has_groups: Some text leaks to 1, 5 and 50 tenants.
        tokens: Lengths of the leaks of their own.
    """

    size: int
    seed: int
    leaks: int
    tenants: int
    is_clean: bool = True
    has_negatives: bool = True
    is_invented: bool = False
    has_groups: bool = True
    tokens: tuple[int, ...] = LENGTHS


@dataclass(slots=True, kw_only=True)
class Tenant:
    """A tenant and the documents that are its own."""

    name: str
    organisation: str
    script: str
    systems: list[Range] = field(default_factory=list)
    library: dict[tuple[int, str], list[Range]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Conversation:
    """Requests that resend what went before."""

    number: int
    kind: str
    tenant: Tenant
    system: Range
    requests: list["Request"] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Request:
    """One request: what is new in its prompt, and its answer.

    Attributes:
        number: Place in the log by time.
        parts: New in this turn: ranges of chunks, or literal text.
    """

    conversation: Conversation
    turn: int
    start_us: int
    end_us: int
    parts: list[Range | str]
    number: int = -1
    answer: str = ""

    @property
    def name(self) -> str:
        return f"r{self.number:07}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """A planned log."""

    texts: Texts
    requests: list[Request]
    conversations: list[Conversation]
    tenants: list[Tenant]
    leaks: list[Leak]
    benign: list[Benign]
    notes: dict[str, int]


def planned(traffic: Traffic, texts: Texts) -> Log:
    """Plan a log.

    Raises:
        SystemExit: There is too little text for that size.
    """
    rng = random.Random(traffic.seed)
    shelves = Shelves(texts, rng)
    tenants = _tenants(traffic.tenants, shelves, rng)
    conversations = list(_conversations(traffic, tenants, shelves, rng))
    requests = [request for conversation in conversations for request in conversation.requests]
    requests.sort(key=lambda request: request.start_us)
    for number, request in enumerate(requests):
        request.number = number
    unique = _unique(traffic, texts, shelves, requests) if traffic.is_clean else None
    answers = Answers(traffic, texts, shelves, unique, tenants, rng)
    answers.write(requests)
    return Log(
        texts=texts, requests=requests, conversations=conversations, tenants=tenants,
        leaks=answers.leaks, benign=answers.benign, notes=answers.notes,
    )  # fmt: skip


def _unique(traffic: Traffic, texts: Texts, shelves: "Shelves", requests: list[Request]) -> Unique:
    """Return what stands once in all that this log can hold."""
    used = np.zeros(len(texts), bool)
    for request in requests:
        for part in (*request.parts, request.conversation.system):
            if not isinstance(part, str):
                used[part[0] : part[1]] = True
    can_leak = used & (np.arange(len(texts)) // 2 % 8 == 0)
    answers = shelves.keep_answers(int(traffic.size * 0.05))
    return Unique(texts, answers | can_leak, used)


class Shelves:
    """The documents by use: public, for answers, and private ones that are handed out once."""

    def __init__(self, texts: Texts, rng: random.Random) -> None:
        self._texts, self._rng = texts, rng
        self.private: dict[tuple[int, str], list[Range]] = defaultdict(list)
        self.answers: dict[str, list[Range]] = defaultdict(list)
        self.public: list[Range] = []
        sections = list(self._sections())
        rng.shuffle(sections)
        for first, last in sections:
            kind, script = int(texts.kind[first]), SCRIPTS[texts.script[first]]
            draw = rng.random()
            if kind == PROSE and draw < _ANSWER_SHARE:
                self.answers[script].append((first, last))
            elif kind == PROSE and script == "latin" and draw < _ANSWER_SHARE + _PUBLIC_SHARE:
                self.public.append((first, last))
            else:
                self.private[kind, script].append((first, last))
        self.public_chunks = [
            chunk for first, last in self.public for chunk in range(first, last, 2)
        ][:2_000]  # fmt: skip

    def _sections(self) -> Iterator[Range]:
        """Cut the documents where the script changes and after `SECTION_CHUNKS`."""
        texts = self._texts
        changes = np.flatnonzero(
            (np.diff(texts.document) != 0) | (np.diff(texts.script) != 0)
        ) + 1  # fmt: skip
        edges = [0, *changes.tolist(), len(texts)]
        for start, end in pairwise(edges):
            for first in range(start, end, SECTION_CHUNKS):
                yield first, min(end, first + SECTION_CHUNKS)

    def document(self, tenant: Tenant, kind: int, script: str, *, anew: float = 0.5) -> Range:
        """Return a document of the tenant: with chance `anew` one that nobody had before."""
        own = tenant.library.setdefault((kind, script), [])
        shelf = self.private[kind, script]
        if not shelf and not own:
            if (kind, script) == (PROSE, "latin"):
                kind, script = CODE, "latin"
            else:
                kind, script = PROSE, "latin"
            own, shelf = tenant.library.setdefault((kind, script), []), self.private[kind, script]
            if not shelf and not own:
                raise SystemExit("too little text for a log of this size: fetch more (--fetch)")
        if shelf and (not own or self._rng.random() < anew):
            own.append(shelf.pop())
            return own[-1]
        return self._rng.choice(own)

    def keep_answers(self, size: int) -> np.ndarray:
        """Keep so many bytes of each script for answers; returns of each chunk whether it is."""
        texts = self._texts
        kept = np.zeros(len(texts), bool)
        for shelf in self.answers.values():
            left = size
            for at, (first, last) in enumerate(shelf):
                left -= int(texts.end[last - 1] - texts.start[first])
                kept[first:last] = True
                if left < 0:
                    del shelf[at + 1 :]
                    break
        return kept

    def window(self, document: Range, chunks: int) -> Range:
        """Return a piece of a document."""
        first, last = document
        start = self._rng.randrange(first, max(first + 1, last - chunks + 1))
        return start, min(last, start + chunks)

    def popular(self) -> int:
        """Return a public chunk; the first are far more popular than the last."""
        rank = int(self._rng.paretovariate(0.8)) - 1
        return self.public_chunks[rank % len(self.public_chunks)]


def _tenants(count: int, shelves: Shelves, rng: random.Random) -> list[Tenant]:
    """Every fifth tenant writes another script; every tenth has a sister in its organisation."""
    others = [script for script in SCRIPTS[1:] if shelves.private[PROSE, script]]
    made: list[Tenant] = []
    for number in range(count):
        is_sister = number % 10 == 9
        script = others[number // 3 % len(others)] if others and number % 3 == 1 else "latin"
        name = f"tenant-{number:03}"
        organisation = made[-1].organisation if is_sister else f"org-{number:03}"
        tenant = Tenant(name=name, organisation=organisation, script=script)
        tenant.systems = [
            shelves.window(shelves.document(tenant, PROSE, "latin"), rng.choice((1, 2)))
            for _ in range(2)
        ]
        made.append(tenant)
    return made


def _conversations(
    traffic: Traffic, tenants: list[Tenant], shelves: Shelves, rng: random.Random
) -> Iterator[Conversation]:
    platform = [(chunk, chunk + 1) for chunk in shelves.public_chunks[-12:]]
    busy = [1 / (1 + number) ** 0.5 for number in range(len(tenants))]
    order = list(tenants)
    rng.shuffle(order)
    size = number = 0
    while size < traffic.size:
        kind = rng.choices([name for name, _ in _SHARES], [share for _, share in _SHARES])[0]
        # The first conversations go round, so that every tenant has one.
        tenant = order[number] if number < len(order) else rng.choices(order, busy)[0]
        if number < len(order) and kind == "long":
            kind = "rag"
        system = rng.choice(platform if rng.random() < 0.4 else tenant.systems)
        made = Conversation(number=number, kind=kind, tenant=tenant, system=system)
        size += _fill(made, traffic, shelves, rng)
        number += 1
        yield made


_TURNS = {"long": (2, 6), "agent": (6, 15), "rag": (1, 4), "chat": (1, 6)}


def _fill(made: Conversation, traffic: Traffic, shelves: Shelves, rng: random.Random) -> int:
    """Give a conversation its turns; returns the bytes that its requests hold."""
    texts = shelves._texts
    start = START_US + rng.randrange(SPAN_US)
    history = _bytes(texts, [made.system])
    total = 0
    for turn in range(rng.randint(*_TURNS[made.kind])):
        parts = _new_parts(made, turn, traffic, shelves, rng)
        end = start + rng.randrange(1_000_000, 30_000_000)
        made.requests.append(
            Request(conversation=made, turn=turn, start_us=start, end_us=end, parts=parts)
        )
        history += _bytes(texts, parts)
        total += history + 1_000
        history += 1_000  # the answer, about
        start = end + rng.randrange(5_000_000, 400_000_000)
    return total


def _bytes(texts: Texts, parts: list[Range | str]) -> int:
    return sum(
        len(part) if isinstance(part, str) else int(texts.end[part[1] - 1] - texts.start[part[0]])
        for part in parts
    )


def _new_parts(
    made: Conversation, turn: int, traffic: Traffic, shelves: Shelves, rng: random.Random
) -> list[Range | str]:
    tenant, question = made.tenant, rng.choice(QUESTIONS)
    if made.kind == "long" and turn == 0:
        return [*_long(tenant, traffic, shelves, rng), question]
    if made.kind == "agent":
        kind = CODE if rng.random() < 0.75 else PROSE
        document = shelves.document(tenant, kind, "latin" if kind == CODE else tenant.script)
        return [shelves.window(document, rng.randint(2, 16)), f"tool result {turn}"]
    if made.kind == "rag":
        found: list[Range | str] = [
            shelves.window(shelves.document(tenant, PROSE, tenant.script, anew=0.3), 2)
            for _ in range(rng.randint(1, 4))
        ]
        if rng.random() < 0.3:
            chunk = shelves.popular()
            found.append((chunk, chunk + 1))
        return [*found, question]
    if made.kind == "chat" and rng.random() < 0.35:
        document = shelves.document(tenant, PROSE, tenant.script, anew=0.2)
        return [shelves.window(document, 1), question]
    if traffic.has_negatives and rng.random() < 0.15:
        return [filled_form(rng), question]
    return [f"{question} ({rng.randrange(10**9)})"]


def _long(
    tenant: Tenant, traffic: Traffic, shelves: Shelves, rng: random.Random
) -> Iterator[Range]:
    """Whole documents, one after the other: 0.2 to 4.9 MB, less in small logs."""
    largest = min(4_900_000, max(400_000, traffic.size // 60))
    wanted = math.exp(rng.uniform(math.log(200_000), math.log(largest)))
    kind = CODE if rng.random() < 0.7 else PROSE
    texts = shelves._texts
    while wanted > 0:
        document = shelves.document(tenant, kind, "latin", anew=0.8)
        wanted -= int(texts.end[document[1] - 1] - texts.start[document[0]])
        yield document

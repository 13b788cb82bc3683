"""The Probe protocol, and Slots: what a plan is made of before its documents are written.

A probe is a pure function of config, seed and the records so far to the next wave. A plan is a list
of Slots, cheap and the same every time; only the wave that is about to be sent gets its documents
written. A request that has a record is never planned again, so an interrupted run goes on where it
stopped.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kvaudit.config import AuditConfig
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import ServerFacts
from kvaudit.target import PlannedRequest, Wave
from probes.documents import Depth, Document, DocumentWriter, attributes_of
from probes.geometry import geometry_of

CALIBRATION_REQUESTS = 10
CALIBRATION_TOKENS = 200
CALIBRATION_ANSWER = 24
CALIBRATION_SCENARIO = "calibration"
COMPANY_REQUESTS = 22  # with the solo ones over 30: what the replay gap's threshold rests on
COMPANY_SIZE = 8
LENGTH_SHARES = (0.5, 0.75)  # of the limit: what first-token times of long prompts rest on
CHAT_ANSWER_MORE = 24  # an instructed model says the sentence again before the code
COUNT_RATIO_MIN, COUNT_RATIO_MAX = 0.5, 2.0
RECALL_MIN = 0.8
ALIKE_MIN = 2  # answers over the limit that begin alike before a plan rests on it
WORD_BEFORE_MIN = 3  # characters of a word before that beginning, so that the word is known by them
COPIED_CHARS = 24  # an answer that begins as the document goes on is a copy of it


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanContext:
    """What a plan may depend on besides the records.

    Attributes:
        config: Seed, tenants, trials, profile.
        facts: What the target says of itself.
        count_tokens: Length of a plain prompt in the target's tokens.
    """

    config: AuditConfig
    facts: ServerFacts
    count_tokens: Callable[[str], int]

    @property
    def root(self) -> str:
        """What all texts of the run are drawn from: its seed, and its nonce if it has one."""
        config = self.config
        return f"{config.seed}" if config.nonce is None else f"{config.seed}-{config.nonce}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCost:
    """What a plan sends, at most. Tokens are the target's."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    def __add__(self, other: "PlanCost") -> "PlanCost":
        """Add two plans' costs."""
        return PlanCost(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )

    def __sub__(self, other: "PlanCost") -> "PlanCost":
        """Take away what is counted twice."""
        return PlanCost(
            requests=self.requests - other.requests,
            prompt_tokens=self.prompt_tokens - other.prompt_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
        )


class Probe(Protocol):
    """One scenario."""

    @property
    def name(self) -> str:
        """Name in the catalogue."""
        ...

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return the strata that the scenario sets out to examine."""
        ...

    def cost(self, context: PlanContext) -> PlanCost:
        """Return what the whole scenario sends, at most."""
        ...

    def next_wave(self, context: PlanContext, records: Sequence[RequestRecord]) -> Wave | None:
        """Return what to send next; None when the scenario is done. Pure."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One request of a plan before its document is written.

    Attributes:
        name: Unique in the scenario.
        tenant: Number of the tenant, from 0.
        stratum: One of the planned strata; "" for requests that are only means.
        tokens: Wanted prompt length.
        depth: Where the document names its codes.
        opening: First sentences, the same for slots that are to share a prefix.
        cut: Place at which a server that truncates would cut: the document is written so that it
            can go on from there; None = anywhere.
        behind: Slot of a fill whose answer is still in its pages; the wanted length then lies
            between `tokens` and the last of its keys.
        reach: Where between them, from 0 to 1.
        behind_codes: Or rather, where that answer has named so many codes; 0 = as `reach` says.
        cancel_after_tokens, stream: As in PlannedRequest.
        repeats: Slot whose document is sent once more, by the same tenant; None = its own one.
        model: Another model or adapter than the run's; "" = the run's. Such a request is asked for
            nothing: nobody has calibrated how well that one answers.
    """

    name: str
    tenant: int
    role: Role
    stratum: str
    tokens: int
    max_tokens: int
    block: int = 0
    depth: Depth = Depth.HEAD
    opening: str = ""
    cut: int | None = None
    behind: "Slot | None" = None
    reach: float = 0.0
    behind_codes: int = 0
    cancel_after_tokens: int | None = None
    stream: bool = True
    repeats: "Slot | None" = None
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWave:
    """Slots that are sent together; `concurrency` as in Wave."""

    slots: tuple[Slot, ...]
    concurrency: int | None = None


def calibration_waves(context: PlanContext, form: str) -> tuple[SlotWave, ...]:
    """Solo in-limit requests before the first fill: the null that cannot leak."""
    tenants = context.config.tenants
    slots = tuple(
        Slot(
            name=f"{form}-{number:02}",
            tenant=number % tenants,
            role=Role.CALIBRATION,
            stratum="calibration",
            tokens=_whole_pages(context, CALIBRATION_TOKENS - (number * 7) % 24),
            max_tokens=CALIBRATION_ANSWER,
            depth=list(Depth)[number % len(Depth)],
        )
        for number in range(CALIBRATION_REQUESTS)
    )
    return (SlotWave(slots=slots, concurrency=1),)


def null_waves(context: PlanContext) -> tuple[SlotWave, ...]:
    """More in-limit requests before the first fill: long ones alone, short ones in company."""
    config = context.config
    limit = geometry_of(context.facts, answer_tokens=CALIBRATION_ANSWER).limit
    long = tuple(
        Slot(
            name=f"length-{number}",
            tenant=number % config.tenants,
            role=Role.CONTROL,
            stratum="calibration by length",
            tokens=_whole_pages(context, int(limit * share)),
            max_tokens=CALIBRATION_ANSWER,
        )
        for number, share in enumerate(LENGTH_SHARES)
        if limit * share > CALIBRATION_TOKENS
    )
    company = tuple(
        Slot(
            name=f"company-{number:02}",
            tenant=number % config.tenants,
            role=Role.CONTROL,
            stratum="calibration in company",
            tokens=_whole_pages(context, CALIBRATION_TOKENS - (number * 7) % 24),
            max_tokens=CALIBRATION_ANSWER,
            depth=list(Depth)[number % len(Depth)],
        )
        for number in range(COMPANY_REQUESTS)
    )
    return SlotWave(slots=long, concurrency=1), SlotWave(slots=company, concurrency=COMPANY_SIZE)


def before_waves(context: PlanContext) -> tuple[SlotWave, ...]:
    """Return everything that is sent before the first fill, if continuing suits the target."""
    return (*calibration_waves(context, "continue"), *null_waves(context))


def _whole_pages(context: PlanContext, tokens: int) -> int:
    """Return the next lower length that fills its last page.

    What is sent before the first fill must be right also on a server that reads a page's stale
    tail: it is what everything else is compared with.
    """
    page = geometry_of(context.facts, answer_tokens=0).page
    return tokens // page * page or tokens


def next_slot_wave(
    context: PlanContext,
    records: Sequence[RequestRecord],
    *,
    scenario: str,
    waves: Iterable[SlotWave],
) -> Wave | None:
    """Return the first wave that has requests without a record, calibration before all else."""
    seen = {record.request_id: record for record in records}
    forms = ("instruct",) if uses_responses(context.config) else ("continue", "instruct")
    for form in forms:
        if form == "instruct" and _recall(records, is_chat=False) >= RECALL_MIN:
            break
        wave = _first_open(
            context,
            seen,
            scenario=CALIBRATION_SCENARIO,
            waves=calibration_waves(context, form),
            is_chat=form == "instruct",
        )
        if wave is not None:
            return wave
    is_chat = uses_responses(context.config) or prefers_chat(records)
    wave = _first_open(
        context, seen, scenario=CALIBRATION_SCENARIO, waves=null_waves(context), is_chat=is_chat
    )
    if wave is not None:
        return wave
    return _first_open(context, seen, scenario=scenario, waves=waves, is_chat=is_chat)


def prefers_chat(records: Sequence[RequestRecord]) -> bool:
    """Whether the calibration was answered better as an instruction than as a continuation."""
    return _recall(records, is_chat=True) > _recall(records, is_chat=False)


def slots_cost(waves: Iterable[SlotWave]) -> PlanCost:
    """Add up what the waves send, at most."""
    slots = [slot for wave in waves for slot in wave.slots]
    return PlanCost(
        requests=len(slots),
        prompt_tokens=sum(slot.tokens for slot in slots),
        output_tokens=sum(slot.max_tokens for slot in slots),
    )


def tenant_alias(number: int) -> str:
    """Return the alias of a tenant by its number, counted from 0: `tenant-1` is the first."""
    return f"tenant-{number + 1}"


def _recall(records: Iterable[RequestRecord], *, is_chat: bool) -> float:
    asked = [
        record
        for record in records
        if record.role is Role.CALIBRATION and _is_chat(record) == is_chat
    ]
    right = sum((record.expected or "") in (record.output_text or "").upper() for record in asked)
    return right / len(asked) if asked else 0.0


def _first_open(
    context: PlanContext,
    seen: dict[str, RequestRecord],
    *,
    scenario: str,
    waves: Iterable[SlotWave],
    is_chat: bool,
) -> Wave | None:
    for wave in waves:
        open_slots = [slot for slot in wave.slots if _request_id(scenario, slot) not in seen]
        if not open_slots:
            continue
        begun = [
            seen[name].wave for slot in wave.slots if (name := _request_id(scenario, slot)) in seen
        ]
        latest = max((record.wave for record in seen.values()), default=-1)
        return Wave(
            index=begun[0] if begun else latest + 1,
            scenario=scenario,
            requests=tuple(
                _planned(context, slot, seen, scenario=scenario, is_chat=is_chat)
                for slot in open_slots
            ),
            twins=tuple(
                _planned(context, slot, seen, scenario=scenario, is_chat=is_chat, twin=True)
                for slot in wave.slots
                if slot.role is Role.FILL
            ),
            concurrency=wave.concurrency,
        )
    return None


def _request_id(scenario: str, slot: Slot) -> str:
    return f"{scenario}-{slot.name}"


def _planned(
    context: PlanContext,
    slot: Slot,
    seen: Mapping[str, RequestRecord],
    *,
    scenario: str,
    is_chat: bool,
    twin: bool = False,
) -> PlannedRequest:
    """Write the document of one slot; a twin has another label and so other canaries."""
    request_id = _request_id(scenario, slot) + ("-twin" if twin else "")
    if slot.behind is not None:
        fill_id = _request_id(scenario, slot.behind)
        fill = _document(context, slot.behind, label=fill_id)
        slot = replace(slot, tokens=_behind(context, slot, fill, seen, fill_id))
    slot = replace(slot, tokens=_fitted(context, slot.tokens, seen.values(), is_chat=is_chat))
    told = slot if slot.repeats is None else replace(slot.repeats, tokens=slot.tokens)
    label = request_id if slot.repeats is None else _request_id(scenario, slot.repeats)
    document = _document(context, told, label=label)
    content = instruction_of(document) if is_chat else document.text
    max_tokens = slot.max_tokens + (CHAT_ANSWER_MORE if is_chat else 0)
    is_asked = slot.max_tokens >= CALIBRATION_ANSWER and not slot.model
    return PlannedRequest(
        request_id=request_id,
        tenant=tenant_alias(slot.tenant),
        messages=(Message(role="user", content=content),),
        scenario=scenario,
        stratum=slot.stratum,
        role=slot.role,
        block=slot.block,
        model=slot.model or context.facts.model or context.config.model,
        canaries=document.canaries,
        expected=document.expected if is_asked else None,
        prompt_tokens_sent=context.count_tokens(content) if is_chat else document.tokens,
        max_tokens=max_tokens,
        cancel_after_tokens=slot.cancel_after_tokens,
        stream=slot.stream,
        is_chat=is_chat,
        is_responses=uses_responses(context.config),
    )


def _fitted(
    context: PlanContext, tokens: int, seen: Iterable[RequestRecord], *, is_chat: bool
) -> int:
    """Correct a wanted length by how the target counts: its template, its own tokeniser.

    Lengths within the limit shrink where the target counts more than we do, lengths over it grow
    where it counts less, so that each stays on its side; a count is known to half a token.
    """
    counts = sorted(
        (record.prompt_tokens / record.prompt_tokens_sent, record.prompt_tokens_sent)
        for record in seen
        if record.role is Role.CALIBRATION
        and _is_chat(record) == is_chat
        and record.prompt_tokens
        and record.prompt_tokens_sent
    )
    if not counts:
        return tokens
    ratio, sent = counts[len(counts) // 2]
    if ratio == 1.0:
        return tokens
    limit = geometry_of(context.facts, answer_tokens=0).limit
    if tokens <= limit:
        return int(tokens / min(max(1.0, ratio + 0.5 / sent), COUNT_RATIO_MAX))
    return int(tokens / max(min(1.0, ratio - 0.5 / sent), COUNT_RATIO_MIN))


def uses_responses(config: AuditConfig) -> bool:
    """Whether everything is sent to `/v1/responses`, which takes messages only."""
    return config.api == "responses"


def _is_chat(record: RequestRecord) -> bool:
    return record.endpoint.endswith(("chat/completions", "/responses"))


def _document(context: PlanContext, slot: Slot, *, label: str) -> Document:
    writer = DocumentWriter(
        root=context.root,
        label=label,
        tenant=tenant_alias(slot.tenant),
        tokens=slot.tokens,
        attributes=attributes_of(slot.tenant, context.config.tenants),
        count_tokens=context.count_tokens,
    )
    if slot.cut is not None:
        document = writer.write_cut(slot.cut)
        if document is not None:
            return document
    return writer.write(depth=slot.depth, opening=slot.opening)


def _behind(
    context: PlanContext,
    slot: Slot,
    fill: Document,
    seen: Mapping[str, RequestRecord],
    fill_id: str,
) -> int:
    """Return the length at which `slot` ends among the keys that the answer to `fill` left."""
    record = seen.get(fill_id)
    answer = (record.output_text or "") if record is not None else ""
    # The last token of an answer is never written: its key would belong to the next step.
    last_key = max(slot.tokens, context.count_tokens(fill.text + answer) - 1)
    if not answer or fill.continuation.startswith(answer[:COPIED_CHARS]):
        told = fill.continuation
        ends = _sentence_ends(fill, told)[slot.behind_codes - 1 : slot.behind_codes]
    else:  # a trained model words its answer in its own way: then what counts is what it wrote
        told = answer
        first = _first_character(seen.values())
        ends = _places_before(first, told) if first else _sentence_ends(fill, told)[::-1]
    # A short document has no second code: then anywhere among the keys is as good as elsewhere.
    for end in ends if slot.behind_codes else ():
        aligned = context.count_tokens(fill.text + told[:end])
        if slot.tokens <= aligned <= last_key:
            return aligned
    return slot.tokens + round(slot.reach * (last_key - slot.tokens))


def _sentence_ends(fill: Document, told: str) -> list[int]:
    """Return where a sentence is about to name a code's place."""
    return [match.end() for match in re.finditer(rf"\sThe {re.escape(fill.attribute)} of", told)]


def _places_before(first: str, told: str) -> list[int]:
    """Return where a word of `told` goes on with `first` for the first time, in order."""
    word = rf"(?<=\s)[^\s{re.escape(first)}]{{{WORD_BEFORE_MIN},}}(?={re.escape(first)})"
    return [match.end() for match in re.finditer(word, told)]


def _first_character(records: Iterable[RequestRecord]) -> str | None:
    """Return the character that answers over the limit began with so far, if it was one and same.

    A server that lost the prompt computes the first token from something else, the same each time.
    Whoever then ends where the stale text goes on with just that token meets no break in it.
    """
    begun = [
        record.output_text[0]
        for record in records
        if record.role is Role.TRIGGER
        and record.outcome is Outcome.ANSWERED
        and record.output_text
        and not record.output_text[0].isspace()
    ]
    alike = len(begun) >= ALIKE_MIN and len(set(begun)) == 1
    return begun[0] if alike else None


def instruction_of(document: Document) -> str:
    """Return a document as a request for chat: its stem is asked for in so many words."""
    body = document.text[: -len(document.stem)]
    return (
        f"{body}\nComplete this sentence with the exact value from the text above, then go on"
        f" quoting the text: {document.stem}"
    )

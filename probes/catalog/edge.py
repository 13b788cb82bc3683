"""Scenario `edge`: up to which length a server answers right, and what it does past it.

Runs by itself, or before other scenarios at a server that does not tell its limits. Stands for the
probe shape "pool size + 1 tokens, and window + 1 tokens" (cases C037-C039, C078).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import ServerFacts
from kvaudit.target import PlannedRequest, Wave
from probes.documents import DocumentWriter, attributes_of
from probes.edge import ANSWER_TOKENS, Edges, EdgeTask, Look, Step, Value, edges_found, next_step
from probes.edge_looks import Ruler, look_of, ruler_of, value_of
from probes.geometry import geometry_of
from probes.slots import (
    CHAT_ANSWER_MORE,
    PlanContext,
    PlanCost,
    instruction_of,
    tenant_alias,
    uses_responses,
)

STRATUM = "edge"
FACTS_REQUESTS_MAX = 3  # where the server tells its limits they are checked and not searched
# Longest prompt of a search that nobody asked for by name: a quick audit stays quick.
TOP_TOKENS = {"quick": 32_768, "standard": 262_144, "deep": 1_048_576}
OVER_CONTEXT_TOKENS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The scenario as a Probe.

    Attributes:
        is_prelude: Runs before other scenarios, within the profile's lengths.
    """

    name: str = "edge"
    is_prelude: bool = False

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return one stratum; none as a prelude, since nobody asked about it."""
        del context
        return () if self.is_prelude else (STRATUM,)

    def cost(self, context: PlanContext) -> PlanCost:
        """Return what the search sends, at most."""
        task = self.task(context)
        requests = task.requests_max + task.sum_requests_max
        return PlanCost(
            requests=requests,
            prompt_tokens=requests * task.top,
            output_tokens=requests * (ANSWER_TOKENS + CHAT_ANSWER_MORE),
        )

    def task(self, context: PlanContext) -> EdgeTask:
        """Return between which lengths to search, as far as the server tells."""
        facts = context.facts
        geometry = geometry_of(facts, answer_tokens=ANSWER_TOKENS)
        page = geometry.page
        if geometry.is_known:
            return EdgeTask(
                page=page, top=geometry.ceiling + page, known_limit=geometry.limit,
                known_over=geometry.over, requests_max=FACTS_REQUESTS_MAX, sum_requests_max=0,
            )  # fmt: skip
        widest = TOP_TOKENS[context.config.profile] if self.is_prelude else TOP_TOKENS["deep"]
        if facts.context_tokens is None:
            return EdgeTask(page=page, top=widest)
        known = facts.context_tokens <= widest
        return EdgeTask(
            page=page,
            top=min(widest, facts.context_tokens + OVER_CONTEXT_TOKENS),
            known_limit=geometry.limit if known else None,
            known_over=geometry.over if known else None,
        )

    def next_wave(self, context: PlanContext, records: Sequence[RequestRecord]) -> Wave | None:
        """Return the next step of the search that has a request without a record."""
        own = [record for record in records if record.scenario == self.name]
        if any(record.outcome is Outcome.RATE_LIMITED for record in own):
            return None  # a limit on the rate must not pass for a limit on the length
        looks, step, begun, _ = _progress(self.task(context), own)
        if step is None:
            return None
        requests = [
            self._planned(context, step, part, number=len(looks), own=own)
            for part in range(len(step.lengths))
            if _request_id(len(looks), part) not in begun
        ]
        latest = max((record.wave for record in records), default=-1)
        index = next(iter(begun.values())).wave if begun else latest + 1
        return Wave(index=index, scenario=self.name, requests=tuple(requests))

    def _planned(
        self,
        context: PlanContext,
        step: Step,
        part: int,
        *,
        number: int,
        own: Sequence[RequestRecord],
    ) -> PlannedRequest:
        """Write the prompt of one step, fitted to how the server counts."""
        ruler = ruler_of(own)
        request_id = _request_id(number, part)
        tenant = (number + part) % context.config.tenants
        is_chat = uses_responses(context.config) or _wants_chat(own)
        writer = DocumentWriter(
            root=context.root,
            label=request_id,
            tenant=tenant_alias(tenant),
            tokens=ruler.own_tokens(step.lengths[part]),
            attributes=attributes_of(tenant, context.config.tenants),
            count_tokens=context.count_tokens,
        )
        document = writer.write(depth=step.depths[part])
        content = instruction_of(document) if is_chat else document.text
        return PlannedRequest(
            request_id=request_id,
            tenant=tenant_alias(tenant),
            messages=(Message(role="user", content=content),),
            scenario=self.name,
            stratum=STRATUM,
            role=Role.CALIBRATION if number == 0 else Role.TRIGGER,
            model=context.facts.model or context.config.model,
            canaries=document.canaries,
            expected=document.expected,
            prompt_tokens_sent=context.count_tokens(content) if is_chat else document.tokens,
            max_tokens=ANSWER_TOKENS + (CHAT_ANSWER_MORE if is_chat else 0),
            is_chat=is_chat,
            is_responses=uses_responses(context.config),
        )


def edges_of(context: PlanContext, records: Sequence[RequestRecord], probe: Edge) -> Edges:
    """Return what the search found so far."""
    own = [record for record in records if record.scenario == probe.name]
    task = probe.task(context)
    progress = _progress(task, own)
    found = _measured(edges_found(task, progress.looks), progress.records_at, ruler_of(own))
    limited = sum(record.outcome is Outcome.RATE_LIMITED for record in own)
    if limited:
        return replace(found, problem="the server limits the rate of requests (HTTP 429)")
    return found


def _measured(
    found: Edges, records_at: Mapping[int, Sequence[RequestRecord]], ruler: Ruler
) -> Edges:
    """Return the lengths as the server counts them, by its usage or else by the last ruler."""

    def measured(length: int | None) -> int | None:
        if length is None:
            return None
        counts = sorted(
            record.prompt_tokens
            if record.prompt_tokens and value_of(record, ruler) is Value.RIGHT
            else ruler.server_tokens(record.prompt_tokens_sent or length)
            for record in records_at.get(length, ())
        )
        return counts[len(counts) // 2] if counts else length

    low, high = measured(found.right_up_to), measured(found.not_right_from)
    refused_above, refused_from = measured(found.refused_above), measured(found.refused_from)
    return replace(
        found,
        right_up_to=low,
        not_right_from=high if high is None or low is None else max(high, low + 1),
        refused_above=refused_above,
        refused_from=(
            refused_from
            if refused_from is None or refused_above is None
            else max(refused_from, refused_above + 1)
        ),
    )


def with_edges(facts: ServerFacts, found: Edges) -> ServerFacts:
    """Return the facts with what was found by probing; what the server says stays as it is."""
    is_wrong_past = found.past in (Value.WRONG, Value.TRUNCATED)
    return replace(
        facts,
        probed_right_tokens=found.right_up_to,
        probed_over_tokens=found.not_right_from,
        probed_past=None if found.past is None else found.past.value,
        probed_ceiling_tokens=found.refused_above if is_wrong_past else None,
        probed_kept_tokens=found.kept_tokens,
        probed_sum_tokens=found.sum_right_up_to if found.sum_fails_from is not None else None,
    )


def told(found: Edges) -> list[str]:
    """Return every change of value in words, one line each."""
    if found.problem is not None and found.right_up_to is None:
        return [f"{found.problem} ({found.requests} requests)"]
    lines = []
    if found.not_right_from is None:
        lines.append(f"answered right up to {found.right_up_to:,} tokens; no edge up to there")
    else:
        assert found.past is not None, "what happens past an edge was seen"
        lines.append(
            f"answered right up to {found.right_up_to or 0:,} tokens; from"
            f" {found.not_right_from:,}: {_PAST[found.past]}{_kept(found)}"
        )
    if found.refused_from is not None and found.refused_from != found.not_right_from:
        lines.append(
            f"first refusal between {found.refused_above or 0:,} and {found.refused_from:,} tokens"
        )
    if found.sum_fails_from is not None:
        lines.append(
            f"prompts in flight together: right up to a sum of {found.sum_right_up_to or 0:,}"
            f" tokens, not from {found.sum_fails_from:,}"
        )
    elif found.sum_right_up_to is not None:
        lines.append(
            f"prompts in flight together: right at a sum of {found.sum_right_up_to:,} tokens"
        )
    lines += [f"the code in the {depth.value} is lost within limits" for depth in found.lost_depths]
    if found.problem is not None:
        lines.append(found.problem)
    return [*lines[:-1], f"{lines[-1]} ({found.requests} requests)"]


_PAST = {
    Value.REFUSED: "refused",
    Value.WRONG: "answered wrong",
    Value.TRUNCATED: "the prompt is cut",
    Value.SILENT: "no answer",
    Value.RIGHT: "answered right",
}


def _kept(found: Edges) -> str:
    if found.past is not Value.TRUNCATED:
        return ""
    kept = f" to {found.kept_tokens:,} tokens" if found.kept_tokens else ""
    return kept + (f", its {found.kept_part} is kept" if found.kept_part else "")


def _request_id(number: int, part: int) -> str:
    return f"edge-{number:02}-{part}"


class _Progress(NamedTuple):
    """Where a search stands.

    Attributes:
        looks: One for each step of which every prompt has a record.
        step: The next one; None when the search is over.
        begun: Records of that step, where a run was cut within it.
        records_at: Records by the length that was wanted of them.
    """

    looks: list[Look]
    step: Step | None
    begun: dict[str, RequestRecord]
    records_at: dict[int, list[RequestRecord]]


def _progress(task: EdgeTask, own: Sequence[RequestRecord]) -> _Progress:
    by_id = {record.request_id: record for record in own}
    looks: list[Look] = []
    seen: list[RequestRecord] = []
    records_at: dict[int, list[RequestRecord]] = {}
    while (step := next_step(task, looks)) is not None:
        names = [_request_id(len(looks), part) for part in range(len(step.lengths))]
        begun = {name: by_id[name] for name in names if name in by_id}
        if len(begun) < len(names):
            return _Progress(looks, step, begun, records_at)
        parts = list(begun.values())
        seen += parts
        for length, record in zip(step.lengths, parts, strict=True):
            records_at.setdefault(length, []).append(record)
        looks.append(look_of(parts, ruler_of(seen)))
    return _Progress(looks, None, {}, records_at)


def _wants_chat(own: Sequence[RequestRecord]) -> bool:
    """Whether the first prompt, a continuation, was not answered right nor refused."""
    first = next((record for record in own if record.request_id == _request_id(0, 0)), None)
    if first is None:
        return False
    return value_of(first, ruler_of(own)) in (Value.WRONG, Value.SILENT)

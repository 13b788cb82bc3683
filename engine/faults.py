"""The fault catalogue: defects as data, the sites where they strike, and the fixes that close them.

A fault is on when the engine's FaultPlan names it. Each site is one line of engine code that asks
`faults.strikes(Site.X)`; the healthy path reads as if the line were not there. Without torch, so
that `kvaudit faults` and the simulator's planner can read it anywhere.

To add a fault: a Site (with its question in the comment), a FaultSpec in `FAULTS`, the fixes that
close the site in `CLOSED_BY`, and the line that asks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from kvaudit.config import FIXES
from kvaudit.errors import UnknownNameError


class Site(StrEnum):
    """A line of engine code where a fault may strike; the comment is what the line decides."""

    PREFILL_DOOR = "prefill-door"  # is a prompt over prefill's limit kept as a placeholder?
    PREFILL_TRUNCATION = "prefill-truncation"  # is it cut to the limit, on prefill alone?
    ABORT_READING = "abort-reading"  # does prefill pass over the abort at its result?
    ABORT_STATUS = "abort-status"  # does a finished transfer overwrite the abort?
    WIRE_CHUNK = "wire-chunk"  # do the pages between start and end of a transfer get lost?
    KV_LENGTH = "kv-length"  # is the length at the hand-off rounded up to whole pages?
    DECODE_RELEASE = "decode-release"  # do pages change hands under a write that still runs?
    ROW_RELEASE = "row-release"  # does a row change hands under a step that still runs?
    PREFIX_ADAPTER = "prefix-adapter"  # does the prefix cache's key leave out the adapter?
    DRAIN_ACK = "drain-ack"  # does an acknowledgement count for every attempt of its room?
    PREFIX_KEY = "prefix-key"  # is the prefix cache's key cut short?
    PREFIX_COMPARISON = "prefix-comparison"  # is a hit taken without comparing tokens?


class Need(StrEnum):
    """A part that must be on for a fault to strike at all."""

    PREFIX_CACHE = "prefix cache"
    OVERLAP = "overlap scheduling"
    ADAPTERS = "adapters"
    ROOM_REUSE = "a router that uses a room again"  # the simulator's; no client can ask for it


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """One defect of the catalogue.

    Attributes:
        name: What `--fault` takes.
        id: Stable id in the catalogue; `also` are further ids that are links of the same chain.
        title: A few words.
        summary: What the defect does, step by step.
        invariant: The rule of a sound engine that it breaks.
        sites: Where it strikes.
        reports: Public reports and advisories of this defect, such as `sgl-project/sglang#30233`.
        client_sees: What an outside client sees.
        caught_by: Rules that must catch it.
        fixed_by: Fixes of this engine that stop it; `start-check` stops the engine instead.
        needs: Parts that must be on.
        trigger: Which plain requests reach it by default.
    """

    name: str
    id: str
    title: str
    summary: str
    invariant: str
    sites: frozenset[Site]
    reports: tuple[str, ...]
    client_sees: str
    caught_by: tuple[str, ...]
    fixed_by: tuple[str, ...]
    trigger: str
    also: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()


# A fix that mends the line itself. `checksum`, `coverage` and `start-check` mend no line: they are
# checks of their own and stand in transfer.py and engine.py.
CLOSED_BY: dict[Site, str] = {
    Site.PREFILL_DOOR: "door",
    Site.ABORT_READING: "retire",
    Site.DECODE_RELEASE: "deferred-release",
    Site.ROW_RELEASE: "deferred-release",
    Site.DRAIN_ACK: "generation",
}

FAULTS: dict[str, FaultSpec] = {
    spec.name: spec
    for spec in (
        FaultSpec(
            name="reject-not-propagated",
            id="F01",
            also=("F02", "F03"),
            title="Prefill's refusal never reaches decode",
            summary=(
                "Prefill refuses a prompt over its limit, yet keeps the request alive with one"
                " placeholder token (id 0) in place of the prompt. It reserves, fills and sends"
                " the one page of the placeholder, calls that the last chunk by its own count, and"
                " the finished transfer overwrites the abort with `length`. Decode has reserved"
                " pages for the whole prompt, checks only the room number, and answers from pages"
                " that hold what earlier requests left."
            ),
            invariant="I1 a refused request never hands off; I2 one length for both roles;"
            " I3 tokens written = tokens reserved; I8 a terminal state is final",
            sites=frozenset({Site.PREFILL_DOOR, Site.ABORT_READING, Site.ABORT_STATUS}),
            reports=(
                "sgl-project/sglang#30233",
                "sgl-project/sglang#33507",
                "sgl-project/sglang#36988",
                "sgl-project/sglang#38935",
            ),
            client_sees=(
                "status 200, full prompt_tokens, first token far too early and the same for every"
                " prompt, then fluent text of other tenants or a loop"
            ),
            caught_by=("KVA101", "KVA201", "KVA302", "KVA303", "KVA401", "KVA407", "KVA408"),
            fixed_by=("retire", "door", "checksum", "coverage", "start-check"),
            trigger="every prompt over prefill's limit and within decode's",
        ),
        FaultSpec(
            name="one-sided-truncate",
            id="F04",
            title="The prompt is cut on prefill only",
            summary=(
                "Prefill cuts a prompt over its limit to the limit and goes on; decode keeps the"
                " length that was sent. The first part of the prompt is there, the rest of decode's"
                " pages hold what earlier requests left."
            ),
            invariant="I2 one length for both roles; I3 tokens written = tokens reserved",
            sites=frozenset({Site.PREFILL_TRUNCATION}),
            reports=("sgl-project/sglang --allow-auto-truncate with roles apart",),
            client_sees=(
                "status 200 and the long prompt_tokens; the early part of the prompt is known, the"
                " end of it is lost or replaced by other tenants' text"
            ),
            caught_by=("KVA101", "KVA201", "KVA302", "KVA401", "KVA408"),
            fixed_by=("checksum", "coverage", "start-check"),
            trigger="every prompt over prefill's limit and within decode's",
        ),
        FaultSpec(
            name="stale-ack",
            id="F16",
            title="An earlier attempt's acknowledgement frees a later attempt's pages",
            summary=(
                "The router tries again under the same room. The first attempt has drained, and"
                " said so. When the second one is cancelled, the acknowledgement that is found"
                " under its room is the first one's: its pages go to the next request while the"
                " second attempt's copies are still under way."
            ),
            invariant="I4 ownership ends only after every writer is done; I8 an id is used again"
            " only with a new generation",
            sites=frozenset({Site.DRAIN_ACK}),
            reports=("SGLang 0.5.22: generation number in abort notification and acknowledgement",),
            client_sees=(
                "the one that was cut sees its own cut; the next one gets status 200 and an answer"
                " that turns to the other's text"
            ),
            caught_by=(),
            fixed_by=("generation",),
            trigger="every request in a room that was used before, if it is cut while its pages"
            " cross the wire",
            needs=(Need.ROOM_REUSE,),
        ),
        FaultSpec(
            name="partial-transfer",
            id="F05",
            title="The middle of a transfer is lost and nobody notices",
            summary=(
                "A transfer of more than seven eighths of prefill's pool overflows the wire's work"
                " list. Its first eighth and its last page arrive, the pages in between do not, and"
                " the transfer counts as a success. Those pages hold what earlier requests left."
                " Sent again, because a check has failed, they go page by page and arrive."
            ),
            invariant="I3 tokens written = tokens reserved",
            sites=frozenset({Site.WIRE_CHUNK}),
            reports=("sgl-project/sglang#38704", "sgl-project/sglang#39500"),
            client_sees=(
                "status 200 and right numbers; the start of the prompt is known, questions about"
                " the rest are answered wrong or with other tenants' text"
            ),
            caught_by=("KVA401", "KVA408"),
            fixed_by=("checksum", "coverage"),
            trigger="every prompt within the limit that takes over 7/8 of prefill's pool",
        ),
        FaultSpec(
            name="stale-tail",
            id="F33",
            title="The stale tail of the last page counts as prompt",
            summary=(
                "At the hand-off decode rounds the prompt's length up to whole pages. What an"
                " earlier request left behind the last token of the last page stands between"
                " prompt and answer, and is read with every token of the answer."
            ),
            invariant="I7 nothing outside the sequence's length is attended",
            sites=frozenset({Site.KV_LENGTH}),
            reports=("sgl-project/sglang#24590",),
            client_sees=(
                "status 200 and right numbers; a wrong word or a lost thread after the first token,"
                " only where the prompt does not end with a page"
            ),
            caught_by=("KVA401", "KVA408"),
            fixed_by=(),
            trigger="every prompt whose length is no multiple of the page size",
        ),
        FaultSpec(
            name="early-free-late-writer",
            id="F13",
            title="Pages change hands while a write into them still runs",
            summary=(
                "A client goes away while its request's pages cross the wire. Decode gives the"
                " pages to the next request at once. The writer has had no acknowledgement, sends"
                " everything once more, and it lands in the new owner's pages."
            ),
            invariant="I4 ownership ends only after every reader and writer is done",
            sites=frozenset({Site.DECODE_RELEASE}),
            reports=(
                "sgl-project/sglang#24527",
                "sgl-project/sglang#35049",
                "sgl-project/sglang#40645",
            ),
            client_sees=(
                "the one that was cut sees its own cut; the next one gets status 200 and an answer"
                " that turns, in its middle, to the other's text"
            ),
            caught_by=("KVA401", "KVA408"),
            fixed_by=("deferred-release",),
            trigger="every request that is cut between its first chunk and its first token",
        ),
        FaultSpec(
            name="row-reuse",
            id="F20",
            title="A row of the page table changes hands while a step still writes it",
            summary=(
                "A client goes away while a decode step is under way. The request's row goes to the"
                " next request at once; the step that is under way still writes the old pages into"
                " the row. The new holder reads, and writes, pages of the one that has left."
            ),
            invariant="I4 ownership ends only after every reader and writer is done;"
            " I8 a row is reused only with a new generation",
            sites=frozenset({Site.ROW_RELEASE}),
            reports=(
                "sgl-project/sglang#18803",
                "sgl-project/sglang#30147",
                "sgl-project/sglang#30578",
            ),
            client_sees=(
                "the one that was cut sees its own cut; the next one gets status 200, its own first"
                " token, and then the other's text"
            ),
            caught_by=("KVA101", "KVA201", "KVA401", "KVA408"),
            fixed_by=("deferred-release",),
            trigger="every request that is cut after its first token, if its row is taken again"
            " before decode's next step",
            needs=(Need.OVERLAP,),
        ),
        FaultSpec(
            name="wrong-adapter-key",
            id="F24",
            title="The prefix cache does not tell adapters apart",
            summary=(
                "The cache key leaves out the adapter, so a prompt under one adapter, or under"
                " none, is served keys and values that another one has computed."
            ),
            invariant="I6 the key holds all tokens, model, adapter and salt; compared on a hit",
            sites=frozenset({Site.PREFIX_ADAPTER}),
            reports=("sgl-project/sglang#24638", "vllm-project/vllm#44701"),
            client_sees=(
                "cached_tokens above 0 for a prompt that this adapter has never read, and an answer"
                " that has lost its thread or its adapter's style"
            ),
            caught_by=("KVA401", "KVA408"),
            fixed_by=(),
            trigger="every prompt of more than one page that another adapter has seen",
            needs=(Need.PREFIX_CACHE, Need.ADAPTERS),
        ),
        FaultSpec(
            name="prefix-hash-collision",
            id="F23",
            title="Two prompts share one prefix-cache key",
            summary=(
                "The cache key is the digest of the first page, cut to a few bits, and the page's"
                " number; tokens are not compared on a hit. The first prompt with a key owns it,"
                " every later one with the same key is answered from the first one's pages."
            ),
            invariant="I6 the key holds all tokens, model, adapter and salt; compared on a hit",
            sites=frozenset({Site.PREFIX_KEY, Site.PREFIX_COMPARISON}),
            reports=("CVE-2025-25183", "CVE-2026-10813", "vllm-project/vllm#54727"),
            client_sees=(
                "cached_tokens above 0 for a prompt that was never sent, and a fluent, confident"
                " answer to somebody else's prompt"
            ),
            caught_by=("KVA101", "KVA201", "KVA304", "KVA401", "KVA408"),
            fixed_by=(),
            trigger="every prompt of more than one page whose first page falls in a taken bucket",
            needs=(Need.PREFIX_CACHE,),
        ),
    )
}

# Width of the cut key under `prefix-hash-collision`: 64 buckets, so that the first few prompts are
# mostly answered right and, after some hundred, hardly any is.
COLLISION_BITS = 6


def fault_spec(name: str) -> FaultSpec:
    """Return one fault by name or id; raises UnknownNameError with the nearest name."""
    by_id = {spec.id.lower(): spec for spec in FAULTS.values()}
    found = FAULTS.get(name) or by_id.get(name.lower())
    if found is None:
        raise UnknownNameError("fault", name, FAULTS)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Which fault is on, which fixes are on, and when the fault strikes.

    Attributes:
        fault: Name of the fault; None = healthy.
        fixes: Fixes that are on.
        every: The fault strikes at every so many-th occasion of a site; 1 = always.
        first: The first occasion that it strikes, counted from 0.
        also: More faults that are on, as in an engine that has several.
    """

    fault: str | None = None
    fixes: frozenset[str] = frozenset()
    every: int = 1
    first: int = 0
    also: frozenset[str] = frozenset()

    def strikes(self, site: Site, occasion: int = 0) -> bool:
        """Tell whether the fault strikes at `site`.

        Args:
            site: The line that asks.
            occasion: Which time this is, counted from 0 by a number that is the same in a
                repeated run, such as the request's ordinal.
        """
        if self.fault is None:
            return False
        if not any(site in FAULTS[name].sites for name in (self.fault, *self.also)):
            return False
        if CLOSED_BY.get(site) in self.fixes:
            return False
        return occasion >= self.first and (occasion - self.first) % self.every == 0

    def has_fix(self, fix: str) -> bool:
        """Tell whether `fix` is on."""
        assert fix in FIXES, f"no such fix: {fix}"
        return fix in self.fixes

    @property
    def spec(self) -> FaultSpec | None:
        """The fault's entry in the catalogue; None = healthy."""
        return FAULTS[self.fault] if self.fault is not None else None


def fault_plan(fault: str | None, fixes: Iterable[str] = ()) -> FaultPlan:
    """Build a plan from what a user typed; raises UnknownNameError with the nearest name."""
    chosen = tuple(fixes)
    for fix in chosen:
        if fix not in FIXES:
            raise UnknownNameError("fix", fix, FIXES)
    if fault is None or fault == "none":
        return FaultPlan(fixes=frozenset(chosen))
    return FaultPlan(fault=fault_spec(fault).name, fixes=frozenset(chosen))

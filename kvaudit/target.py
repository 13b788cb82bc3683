"""What can be sent, and the protocol of anything that it can be sent to.

A probe makes Waves of PlannedRequests; a Target sends one wave and yields a Reply for each request.
The reference engine in process and any HTTP server are Targets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from kvaudit.canary import Canary
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import ServerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to be sent; fields as in RequestRecord, which it becomes.

    Attributes:
        cancel_after_tokens: Cut the request after so many output tokens; 0 = as soon as it is
            admitted; None = never.
        logprobs: Ask for the log-probability of each emitted token.
        is_chat: Send as chat messages; else as one plain completion prompt.
        is_responses: Send those messages to `/v1/responses` instead of `/v1/chat/completions`.
    """

    request_id: str
    tenant: str
    messages: tuple[Message, ...]
    scenario: str
    stratum: str
    role: Role
    organisation: str | None = None
    block: int = 0
    model: str = ""
    attachments: tuple[str, ...] = ()
    canaries: tuple[Canary, ...] = ()
    expected: str | None = None
    prompt_tokens_sent: int | None = None
    max_tokens: int = 48
    temperature: float = 0.0
    seed: int | None = None
    cache_salt: str | None = None
    stream: bool = True
    cancel_after_tokens: int | None = None
    logprobs: bool = True
    is_chat: bool = False
    is_responses: bool = False

    @property
    def endpoint(self) -> str:
        """Path that the request is sent to."""
        if self.is_responses:
            return "/v1/responses"
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    @property
    def prompt_text(self) -> str:
        """All prompt messages, joined by newlines."""
        return "\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Requests that must overlap in time.

    Attributes:
        index: Counts from 0 through the whole run.
        scenario: Name of the scenario that planned it.
        requests: What is sent.
        twins: Never-sent twins of the fills, minted by the same generator: sent to no one, so what
            the answers share with them is chance (DESIGN of the null: it must be unable to leak).
        concurrency: How many may be in flight together; None = all, 1 = one after another.
    """

    index: int
    scenario: str
    requests: tuple[PlannedRequest, ...]
    twins: tuple[PlannedRequest, ...] = ()
    concurrency: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a Target got for one PlannedRequest; fields as in RequestRecord."""

    request_id: str
    outcome: Outcome
    status: int | None = None
    error_type: str | None = None
    error_message: str | None = None
    output_text: str | None = None
    output_token_ids: tuple[int, ...] | None = None
    output_logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    sent_unix_ns: int | None = None
    ttft_ms: float | None = None
    ended_unix_ns: int | None = None
    replica: str | None = None
    response_id: str | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The answer to one request, scored again under its own prompt.

    Attributes:
        request_id: The request.
        logprobs: Log-probability of each emitted token, in nat; None where there is none.
        reason: Why there is none.
    """

    request_id: str
    logprobs: tuple[float, ...] | None = None
    reason: str | None = None


@runtime_checkable
class Replayer(Protocol):
    """A Target that can score given tokens under a given prompt past every cache."""

    def replay_obstacle(self, planned: PlannedRequest) -> str | None:
        """Return why this request can't be replayed; None if it is worth trying."""
        ...

    def replay_logprobs(
        self, planned: PlannedRequest, output_token_ids: Sequence[int]
    ) -> list[float] | None:
        """Return the log-probability of each given token; None if that failed."""
        ...


class Target(Protocol):
    """Anything that can be sent a Wave."""

    def facts(self) -> ServerFacts:
        """Return what the target says of itself; raises TargetError when it can't be reached."""
        ...

    def count_tokens(self, text: str) -> int | None:
        """Return the length of a plain prompt in the target's tokens; None if it does not tell."""
        ...

    def send(self, wave: Wave, departing: Callable[[PlannedRequest], None]) -> Iterator[Reply]:
        """Send one wave and yield one Reply for each request, in the order in which they end.

        `departing` is called for each request just before its first byte leaves.
        """
        ...

    def close(self) -> None:
        """Let go of everything that the target holds."""
        ...


def with_replay(record: RequestRecord, replay: Replay | None) -> RequestRecord:
    """Add what a replay of the record's own request gave."""
    if replay is None:
        return record
    assert replay.request_id == record.request_id, "a replay of another request"
    return replace(record, replay_logprobs=replay.logprobs, replay_reason=replay.reason)


def record_of(planned: PlannedRequest, reply: Reply | None, *, wave: int) -> RequestRecord:
    """Join what was planned with what came back; without a reply the outcome is UNKNOWN."""
    assert reply is None or reply.request_id == planned.request_id, "a reply to another request"
    shared = {
        name: getattr(planned, name)
        for name in (
            "request_id", "tenant", "organisation", "scenario", "stratum", "role", "block",
            "model", "messages", "attachments", "canaries", "expected", "prompt_tokens_sent",
            "max_tokens", "temperature", "seed", "cache_salt", "stream",
        )
    }  # fmt: skip
    endpoint = planned.endpoint
    if reply is None:
        return RequestRecord(**shared, wave=wave, endpoint=endpoint)
    got = {
        name: getattr(reply, name) for name in Reply.__dataclass_fields__ if name != "request_id"
    }
    return RequestRecord(**shared, **got, wave=wave, endpoint=endpoint)

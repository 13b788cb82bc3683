"""What one request said and got, as seen from outside the server.

A live probe and an imported log meet here; from here on nobody can tell them apart. `None` always
means "not known". Field names follow the OpenAI API where it has one.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from kvaudit.canary import Canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A party whose text must reach nobody else.

    Attributes:
        alias: Short name used in plans, records and reports; never a credential.
        organisation: Tenants of one organisation are not foreign to each other; None = the tenant.
    """

    alias: str
    organisation: str | None = None

    @property
    def owner(self) -> str:
        """The organisation, or the tenant itself where none is named."""
        return self.organisation or self.alias


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat.

    Attributes:
        role: `system`, `user`, `assistant` or `tool`.
        content: Its text.
    """

    role: str
    content: str


class Role(StrEnum):
    """What a request is for in its plan; imported logs are all `OBSERVED`."""

    CALIBRATION = "calibration"  # in-limit, alone, before the first fill: the null of several rules
    FILL = "fill"  # leaves a tenant's text in the pages
    TRIGGER = "trigger"  # may meet somebody else's pages
    CONTROL = "control"  # in-limit, sent after or beside the triggers: must be answered right
    OBSERVED = "observed"


class Outcome(StrEnum):
    """How a request ended.

    ANSWERED and REFUSED are examined; the others are censored and counted, never passed over.
    """

    ANSWERED = "answered"  # 2xx with a finished answer
    REFUSED = "refused"  # 4xx, or a 5xx that names the limit or the failed transfer
    ERROR = "error"  # any other error status, broken stream, connection failure
    RATE_LIMITED = "rate_limited"  # 429
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"  # the plan cut it
    UNKNOWN = "unknown"  # begun and not ended when the run was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, from prompt to last token, as seen from outside the server.

    Attributes:
        request_id: Unique in the run; the log's own id for imported logs.
        tenant: Alias of the tenant that sent it.
        organisation: Owner of the tenant; None = the tenant itself.
        scenario, stratum, role, block, wave: The place in the plan; block counts from 0.
        endpoint: Path that was called, such as `/v1/completions`.
        model: Model name that was asked for.
        messages: Prompt as sent, in order; a plain completion prompt is one user message.
        attachments: Further own context: OCR text, retrieved items, tool schemas, response format.
        canaries: Canaries planted in this prompt.
        expected: What a right answer must contain; None if nothing was asked for.
        prompt_tokens_sent: Prompt length by the client's own count, in tokens.
        max_tokens, temperature, seed, cache_salt, stream: As sent.
        status: HTTP status; None when nothing came back.
        outcome: How the request ended.
        error_type, error_message: As the server or the client named it.
        output_text: The answer, all channels that a user sees, in order.
        output_token_ids: Ids of the emitted tokens.
        output_logprobs: Log-probability of each emitted token, in nat, before temperature.
        replay_logprobs: Log-probability of each emitted token under the prompt really sent, taken
            again past every cache; None where that was not done.
        replay_reason: Why not; None where it was done, or never tried.
        finish_reason: `stop`, `length`, `abort`, ... as reported.
        prompt_tokens, completion_tokens, cached_tokens: Usage as reported.
        sent_unix_ns: Wall clock when the first byte left, in nanoseconds.
        ttft_ms: Time to first token, in milliseconds.
        ended_unix_ns: Wall clock after the last byte, in nanoseconds.
        replica: Which replica answered, if the server says so.
        response_id: Id that the server gave the answer.
    """

    request_id: str
    tenant: str
    organisation: str | None = None
    scenario: str = ""
    stratum: str = ""
    role: Role = Role.OBSERVED
    block: int = 0
    wave: int = 0
    endpoint: str = ""
    model: str = ""
    messages: tuple[Message, ...] = ()
    attachments: tuple[str, ...] = ()
    canaries: tuple[Canary, ...] = ()
    expected: str | None = None
    prompt_tokens_sent: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    status: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
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
    headers: tuple[tuple[str, str], ...] = field(default=())
    replay_logprobs: tuple[float, ...] | None = None
    replay_reason: str | None = None

    @property
    def owner(self) -> str:
        """The organisation, or the tenant itself where none is named."""
        return self.organisation or self.tenant

    @property
    def prompt_text(self) -> str:
        """All prompt messages, joined by newlines."""
        return "\n".join(message.content for message in self.messages)

    @property
    def own_context(self) -> str:
        """Everything that the answer may rightly repeat: prompt and attachments."""
        return "\n".join([self.prompt_text, *self.attachments])

    @property
    def is_examined(self) -> bool:
        """Whether the outcome says something about the server."""
        return self.outcome in (Outcome.ANSWERED, Outcome.REFUSED)

"""Request, its sampling, the states of its two legs, and the events that it ends in.

A request has one leg at each role. Each leg has its own idea of the prompt (`tokens` at prefill,
`kv_tokens` at decode): in a sound engine the two agree, and most faults are about how they don't.
Without torch.
"""

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: 0 = greedy.
        top_p: Keep the most likely tokens up to this share; 1 = all.
        seed: The same seed gives the same tokens; None = from the engine's seed and request id.
        max_tokens: Output tokens at most, the first one included.
        ignore_eos: Go on past the model's end token.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 48
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request as it comes to the engine's door.

    Attributes:
        request_id: Unique among the requests alive.
        prompt_ids: The prompt, in tokens of the model.
        sampling: How tokens are chosen.
        adapter: Adapter to compute with; None = the base model.
        cache_salt: Prompts of different salts never share cached pages; None = no salt.
        room: Bootstrap room that the router has chosen, at most 63 bits; None = a fresh one. Two
            requests of one room are two attempts, told apart by their generation.
        tenant: Whose it is, for the sanitizer's words alone; None = not known.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    adapter: str | None = None
    cache_salt: str | None = None
    room: int | None = None
    tenant: str | None = None

    def token_seed(self, engine_seed: int, index: int) -> int:
        """Return the seed of output token `index`: the same whatever ran beside it."""
        own = self.sampling.seed
        root = f"{engine_seed}/{self.request_id}" if own is None else f"{own}"
        digest = hashlib.blake2b(f"{root}/{index}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """Why a request got no answer, in the OpenAI API's terms.

    Attributes:
        status: HTTP status.
        type, code: As the API names them.
        message: What is wrong, with the numbers.
        param: The field of the request that is at fault; None if none is.
    """

    status: int
    type: str
    code: str
    message: str
    param: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the body of the error response."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


def too_long(*, role: str, length: int, limit: int) -> ApiError:
    """Return the refusal of a prompt of `length` tokens by a role that admits less than `limit`."""
    return ApiError(
        status=400,
        type="invalid_request_error",
        code="context_length_exceeded",
        param="prompt",
        message=f"Input length ({length} tokens) exceeds the maximum allowed length"
        f" ({limit - 1} tokens) of the {role} role.",
    )


def handoff_failed(code: str, message: str) -> ApiError:
    """Return the failure of a hand-off between the roles."""
    return ApiError(status=500, type="server_error", code=code, message=message)


class PrefillState(StrEnum):
    """Where a request's prefill leg is."""

    BOOTSTRAP = "bootstrap"  # decode has not published its pages yet
    WAITING = "waiting"  # no page of its own yet
    RUNNING = "running"  # chunk by chunk
    SENDING = "sending"  # computed; its pages are read by the wire
    DONE = "done"


class DecodeState(StrEnum):
    """Where a request's decode leg is."""

    QUEUED = "queued"  # no page reserved yet
    TRANSFER = "transfer"  # pages reserved and published
    RUNNING = "running"  # one token a step
    RETRACTED = "retracted"  # pages taken back, their content saved on the host
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What the answer reports: prompt length by decode, prefix-cache tokens by prefill."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedEvent:
    """Both roles have taken the request; its first chunk runs or has run."""

    request_id: str
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One output token.

    Attributes:
        index: Place in the answer, from 0.
        token_id: The token.
        logprob: Its raw log-probability, in nat, before temperature.
        at_ns: When, on the engine's monotonic clock.
    """

    request_id: str
    index: int
    token_id: int
    logprob: float
    at_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent:
    """The request is over.

    Attributes:
        status: HTTP status; 499 when the client went away.
        finish_reason: `stop`, `length` or `abort`; None for an error.
        error: Why there is no answer; None if there is one.
        usage: None for an error.
    """

    request_id: str
    at_ns: int
    status: int
    finish_reason: str | None = None
    error: ApiError | None = None
    usage: Usage | None = None


Event = AdmittedEvent | TokenEvent | EndEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class LegReport:
    """What one role wrote in its own log about one request; a client never sees it.

    Attributes:
        role: `prefill` or `decode`.
        room: Bootstrap room, the one name that both roles share.
        input_tokens: Prompt length as this role counted it.
        finish_reason, status: The leg's own result.
        message: The error that the role logged; "" if none.
        pages_sent: Pages that crossed the wire (prefill).
    """

    request_id: str
    role: str
    room: int
    input_tokens: int
    finish_reason: str | None
    status: int
    at_unix_ns: int
    message: str = ""
    pages_sent: int | None = None

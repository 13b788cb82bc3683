"""Bodies of the OpenAI API, checked into asks; what does not fit is refused in its error shape.

A field that nobody knows is an error, and so is a known one that this server would have to ignore:
an audit must never believe that something was asked for which was not.
"""

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from engine.config import EngineConfig
from engine.request import ApiError, Sampling, too_long
from engine.role import StepModel

ROLES = ("system", "developer", "user", "assistant", "tool")
SALT_CHARACTERS_MAX = 1024
ID_CHARACTERS_MAX = 256
LOGPROBS_MAX = 20
COMPLETION_MAX_TOKENS = 16  # the API's own default for plain completions

# Fields that change nothing here; any value is taken.
IGNORED = frozenset(
    {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
)
# Fields that are known and not built: only the value that means "off" is taken.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "stop": ([], ""),
    "presence_penalty": (0,), "frequency_penalty": (0,), "logit_bias": ({},), "top_k": (-1, 0),
    "min_p": (0,), "repetition_penalty": (1,), "tools": ([],), "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False), "response_format": ({"type": "text"},),
    "modalities": (["text"],),
}  # fmt: skip
COMMON = frozenset(
    {"model", "max_tokens", "temperature", "top_p", "seed", "stream", "stream_options", "logprobs",
     "prompt_logprobs", "cache_salt", "return_token_ids", "ignore_eos"}
)  # fmt: skip
COMPLETION_FIELDS = COMMON | {"prompt"}
CHAT_FIELDS = COMMON | {"messages", "max_completion_tokens", "top_logprobs"}


class ApiRefusalError(Exception):
    """A request that is answered with an error; `error` is its body."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One checked request for an answer.

    Attributes:
        is_chat: Whether it came to the chat endpoint.
        model: The name that was asked for; it stands in the answer.
        adapter: None = the base model.
        prompt_ids: The prompt in tokens.
        stream, include_usage: Whether chunks are sent, and a usage chunk last.
        wants_logprobs, wants_prompt_logprobs, wants_token_ids: What the answer carries.
    """

    is_chat: bool
    model: str
    adapter: str | None
    prompt_ids: tuple[int, ...]
    sampling: Sampling
    cache_salt: str | None
    stream: bool
    include_usage: bool
    wants_logprobs: bool
    wants_prompt_logprobs: bool
    wants_token_ids: bool


def parsed_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body, or refuse it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        refuse(None, f"The body is not UTF-8 at byte {error.start}.", code="invalid_utf8")
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        refuse(None, "The body is nested too deeply.", code="invalid_json")
    except ValueError as error:
        refuse(None, f"The body is no JSON: {error}.", code="invalid_json")
    if not isinstance(value, dict):
        refuse(None, "The body must be a JSON object.", code="invalid_json")
    return value


def completion_ask(body: Mapping[str, Any], config: EngineConfig, model: StepModel) -> Ask:
    """Return the ask of a `/v1/completions` body, or refuse it."""
    _check_fields(body, COMPLETION_FIELDS)
    logprobs = _whole(body, "logprobs", 0, LOGPROBS_MAX)
    is_scored = body.get("prompt_logprobs") is not None
    max_tokens = _whole(body, "max_tokens", 0 if is_scored else 1, None)
    if max_tokens == 0 and _switch(body, "stream"):
        refuse("stream", "With `max_tokens` 0 the prompt is only scored: there is no stream.")
    return _ask(
        body,
        config,
        model,
        prompt_ids=_prompt_ids(body.get("prompt"), model),
        wants_logprobs=logprobs is not None,
        max_tokens=max_tokens if max_tokens is not None else COMPLETION_MAX_TOKENS,
        is_chat=False,
    )


def chat_ask(body: Mapping[str, Any], config: EngineConfig, model: StepModel) -> Ask:
    """Return the ask of a `/v1/chat/completions` body, or refuse it."""
    _check_fields(body, CHAT_FIELDS)
    _whole(body, "top_logprobs", 0, LOGPROBS_MAX)
    ids = tuple(model.encode_chat(messages_of(body.get("messages"))))
    max_tokens = _whole(body, "max_completion_tokens", 1, None)
    if max_tokens is None:
        max_tokens = _whole(body, "max_tokens", 1, None)
    room = max(1, config.total_max - len(ids))
    return _ask(
        body,
        config,
        model,
        prompt_ids=ids,
        wants_logprobs=_switch(body, "logprobs"),
        max_tokens=max_tokens if max_tokens is not None else room,
        is_chat=True,
    )


def messages_of(said: Any) -> list[dict[str, str]]:
    """Return the messages of a chat, or refuse them."""
    if not isinstance(said, list) or not said:
        refuse("messages", "`messages` must be a list with at least one message.")
    return [_message(entry, f"messages[{index}]") for index, entry in enumerate(said)]


def checked_model(said: Any, config: EngineConfig, model: StepModel) -> tuple[str, str | None]:
    """Return the name that was asked for and its adapter, or refuse with 404."""
    if said is None:
        return config.model, None
    if said == config.model:
        return config.model, None
    if isinstance(said, str) and said in model.adapters:
        return said, said
    served = ", ".join(f"`{name}`" for name in (config.model, *model.adapters))
    shown = f"`{said[:100]}`" if isinstance(said, str) else "of that kind"
    raise ApiRefusalError(
        ApiError(
            status=404, type="invalid_request_error", code="model_not_found", param="model",
            message=f"The model {shown} does not exist. Served here: {served}.",
        )
    )  # fmt: skip


def checked_id(said: str) -> str:
    """Return a client's `X-Request-Id`, or refuse it."""
    if not said or len(said) > ID_CHARACTERS_MAX or not said.isascii() or not said.isprintable():
        refuse(
            "X-Request-Id",
            f"`X-Request-Id` must be 1 to {ID_CHARACTERS_MAX} printable ASCII characters.",
        )
    return said


def encoded(text: str, model: StepModel, param: str) -> tuple[int, ...]:
    """Return the tokens of a prompt, or refuse text that is none."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        refuse(param, f"`{param}` holds half a surrogate pair, which is no text.")
    return tuple(model.encode(text))


def refuse(
    param: str | None, message: str, *, status: int = 400, code: str = "invalid_value"
) -> NoReturn:
    """Raise the refusal of one field."""
    raise ApiRefusalError(
        ApiError(
            status=status, type="invalid_request_error", code=code, param=param, message=message
        )
    )


def _ask(
    body: Mapping[str, Any],
    config: EngineConfig,
    model: StepModel,
    *,
    prompt_ids: tuple[int, ...],
    wants_logprobs: bool,
    max_tokens: int,
    is_chat: bool,
) -> Ask:
    name, adapter = checked_model(body.get("model"), config, model)
    wants_scores = _whole(body, "prompt_logprobs", 0, LOGPROBS_MAX) is not None
    if wants_scores:
        _check_scored(prompt_ids, config, is_only_scored=max_tokens == 0)
    temperature = _number(body, "temperature", 0.0, 2.0)
    top_p = _number(body, "top_p", 0.0, 1.0)
    if top_p == 0:
        refuse("top_p", "`top_p` must be above 0.")
    stream, include_usage = _streaming(body)
    return Ask(
        is_chat=is_chat,
        model=name,
        adapter=adapter,
        prompt_ids=prompt_ids,
        sampling=Sampling(
            temperature=1.0 if temperature is None else temperature,
            top_p=1.0 if top_p is None else top_p,
            seed=_whole(body, "seed", -(2**63), 2**63 - 1),
            max_tokens=max_tokens,
            ignore_eos=_switch(body, "ignore_eos"),
        ),
        cache_salt=_salt(body.get("cache_salt")),
        stream=stream,
        include_usage=include_usage,
        wants_logprobs=wants_logprobs,
        wants_prompt_logprobs=wants_scores,
        wants_token_ids=_switch(body, "return_token_ids"),
    )


def _check_scored(ids: Sequence[int], config: EngineConfig, *, is_only_scored: bool) -> None:
    """Refuse to score what can't be held: by prefill, or, if no answer follows, by the context."""
    if is_only_scored and len(ids) > config.context_tokens:
        limit = config.context_tokens + 1
        raise ApiRefusalError(too_long(role="tokenizer", length=len(ids), limit=limit))
    if not is_only_scored and len(ids) >= config.prefill_limit:
        raise ApiRefusalError(too_long(role="prefill", length=len(ids), limit=config.prefill_limit))


def _check_fields(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in known or name in IGNORED or (value is None and name in NEUTRAL):
            continue
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                refuse(
                    name, f"`{name}` is not supported by this server.", code="unsupported_parameter"
                )
            continue
        near = difflib.get_close_matches(name[:100], [*known, *NEUTRAL], n=1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        refuse(name[:100], f"Unknown parameter: `{name[:100]}`.{hint}", code="unknown_parameter")


def _prompt_ids(said: Any, model: StepModel) -> tuple[int, ...]:
    if isinstance(said, list) and len(said) == 1 and isinstance(said[0], str | list):
        said = said[0]  # a batch of one
    if isinstance(said, str):
        return encoded(said, model, "prompt")
    if isinstance(said, list) and said and all(isinstance(item, str | list) for item in said):
        refuse("prompt", "One prompt a request: batches are not supported by this server.")
    if isinstance(said, list) and all(type(item) is int for item in said):
        if any(not 0 <= item < model.vocab_size for item in said):
            refuse("prompt", f"Token ids must lie below {model.vocab_size}.")
        return tuple(said)
    refuse("prompt", "`prompt` must be a string or a list of token ids.")


def _message(said: Any, where: str) -> dict[str, str]:
    if not isinstance(said, dict):
        refuse(where, f"`{where}` must be an object.")
    role = said.get("role")
    if role not in ROLES:
        refuse(f"{where}.role", f"`{where}.role` must be one of {', '.join(ROLES)}.")
    content = said.get("content")
    if isinstance(content, list):
        parts = [part.get("text") if _is_text(part) else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            refuse(f"{where}.content", "Only text parts are supported by this server.")
        content = "".join(str(part) for part in parts)
    if content is None and role == "assistant":
        content = ""
    if not isinstance(content, str):
        refuse(f"{where}.content", f"`{where}.content` must be text.")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError:
        refuse(f"{where}.content", "Half a surrogate pair is no text.")
    return {"role": role, "content": content}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text"


def _streaming(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Return whether to stream, and whether a usage chunk ends the stream."""
    stream = _switch(body, "stream")
    options = body.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict) or not stream:
        refuse("stream_options", "`stream_options` must be an object, and needs `stream`.")
    for name in options:
        if name != "include_usage":
            refuse("stream_options", "`stream_options` knows `include_usage` alone.")
    return stream, _switch(options, "include_usage")


def _salt(said: Any) -> str | None:
    if said is None:
        return None
    if not isinstance(said, str) or not 0 < len(said) <= SALT_CHARACTERS_MAX:
        refuse("cache_salt", f"`cache_salt` must be text of 1 to {SALT_CHARACTERS_MAX} characters.")
    try:
        said.encode("utf-8")
    except UnicodeEncodeError:
        refuse("cache_salt", "`cache_salt` holds half a surrogate pair.")
    return said


def _switch(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        refuse(name, f"`{name}` must be true or false.")
    return value


def _whole(body: Mapping[str, Any], name: str, low: int, high: int | None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or value < low or (high is not None and value > high):
        span = f"at least {low}" if high is None else f"from {low} to {high}"
        refuse(name, f"`{name}` must be a whole number, {span}.")
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        refuse(name, f"`{name}` must be a number from {low:g} to {high:g}.")
    return float(value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"`{name}` is no JSON number")

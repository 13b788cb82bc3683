"""SGLang requests, to a LogRow: what its text log, JSON log and metrics export share."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvaudit.forensics.bodies import context_of, finish_of, input_content, request_facts
from kvaudit.forensics.chat_template import raw_output, templated_prompt
from kvaudit.forensics.fields import (
    bool_of,
    first_text,
    float_of,
    int_of,
    mapping_of,
    other_ids,
    text_of,
)  # fmt: skip
from kvaudit.forensics.pyrepr import Gap
from kvaudit.forensics.row import ABSENT, Content, LogRow, TimeBasis
from kvaudit.forensics.times import US, Moment, moment_of

LINE_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?: [^\]]{1,60})?\] ?")
# Level 2 keeps the first and last 1,024 characters of a longer string.
_CUT_CHARS = 1024
_CUT_MARK = "..."
_TENANT_HEADERS = ("x-smg-routing-key", "x-tenant-id", "x-tenant", "x-org-id", "x-user-id")
_TENANT_FIELDS = ("routing_key", "extra_key")


@dataclass(slots=True)
class Logged:
    """One request, as far as its lines came.

    Attributes:
        body: The OpenAI body before conversion.
        obj: The engine's request object.
        out: The engine's answer; None while there is none.
        headers: Those that the server was told to log.
        received, finished: Naive local times of the lines.
    """

    row: int
    offset: int
    rid: str
    body: dict[str, Any] = field(default_factory=dict)
    obj: dict[str, Any] = field(default_factory=dict)
    out: Mapping[str, Any] | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)
    received: Moment | None = None
    finished: Moment | None = None

    def take_headers(self, headers: object) -> None:
        """Take logged headers; a line without any changes nothing."""
        self.headers = mapping_of(headers) or self.headers

    def take_obj(self, obj: Mapping[str, Any]) -> None:
        """Take a request object; what a later line knows of it wins, nulls never do."""
        self.obj |= {key: value for key, value in obj.items() if value is not None}


_BATCH_MAX = 4_096


def rids_of(value: object) -> list[str]:
    """Return the ids of one request, or of a native batch, which has a list of them."""
    items = value[:_BATCH_MAX] if isinstance(value, list) else [value]
    return [rid for item in items if (rid := text_of(item)) is not None]


def item_of(value: object, number: int) -> object:
    """Return one request's own of a value that a batch holds as a list."""
    if isinstance(value, list):
        return value[number] if number < len(value) else None
    return value


def of_batch(obj: Mapping[str, Any], number: int, size: int) -> Mapping[str, Any]:
    """Return the request object of one request of a batch."""
    if size <= 1:
        return obj
    return {key: item_of(value, number) if isinstance(value, list) and len(value) == size else value
            for key, value in obj.items()}  # fmt: skip


def line_moment(text: str) -> tuple[Moment | None, str]:
    """Return the naive time that a line begins with, and the rest of the line."""
    match = LINE_TIME.match(text)
    if match is None:
        return None, text
    return moment_of(match.group(1)), text[match.end() :]


def _whole(value: object) -> tuple[str | None, int | None]:
    """Return a text and where the logger cut its middle out; None if it is whole."""
    if isinstance(value, Gap):
        return value.text, value.offset
    text = text_of(value)
    if text is None:
        return None, None
    if len(text) == 2 * _CUT_CHARS + len(_CUT_MARK) and text.startswith(_CUT_MARK, _CUT_CHARS):
        return text[:_CUT_CHARS] + text[_CUT_CHARS + len(_CUT_MARK) :], _CUT_CHARS
    return text, None


def logged_row(logged: Logged) -> LogRow:
    """Return the row of one request."""
    obj, out, body = logged.obj, mapping_of(logged.out), logged.body
    meta = mapping_of(out.get("meta_info"))
    facts = request_facts(body)
    sampling = mapping_of(obj.get("sampling_params"))
    reason = mapping_of(meta.get("finish_reason"))
    finish = finish_of(reason.get("type"))
    start, end, basis = _times(logged, meta)
    tenant, tenant_source = _tenant(logged)
    headers = {str(key).lower(): value for key, value in mapping_of(logged.headers).items()}
    output = _answer(out, finish)
    status = int_of(reason.get("status_code"))
    return LogRow(
        source_row=logged.row,
        source_byte_offset=logged.offset,
        request_id=logged.rid,
        correlation_ids=other_ids(
            logged.rid, headers.get("x-request-id"), headers.get("x-correlation-id")
        ),
        conversation_id=first_text(obj.get("conversation_id"), obj.get("session_id")),
        tenant_id=tenant,
        tenant_id_source=tenant_source,
        user_id=facts.user,
        start_us=start.us if start else None,
        end_us=end.us if end else None,
        ttft_s=_first_token_s(meta),
        time_precision_us=start.precision_us if start else None,
        time_basis=basis,
        provider="sglang",
        request_model=facts.model,
        stream=bool_of(obj.get("stream")),
        engine_slot=int_of(meta.get("dp_rank")),
        cache_salt=first_text(obj.get("cache_salt"), facts.cache_salt),
        lora_name=first_text(obj.get("lora_path"), obj.get("lora_id")),
        status=status or (200 if finish not in (None, "abort") else None),
        error_type=text_of(reason.get("err_type")),
        error_message=text_of(reason.get("message")),
        finish_reasons=(finish,) if finish else (),
        input_tokens=int_of(meta.get("prompt_tokens")),
        output_tokens=int_of(meta.get("completion_tokens")),
        cached_tokens=int_of(meta.get("cached_tokens")),
        reasoning_tokens=int_of(meta.get("reasoning_tokens")) or None,
        max_tokens=int_of(sampling.get("max_new_tokens")) or facts.max_tokens,
        temperature=float_of(sampling.get("temperature")),
        input=_prompt(obj, body),
        output=output,
        context=context_of(body),
        leg=_leg(meta, obj),
        room=text_of(obj.get("bootstrap_room")),
        fields={"obj": obj, "body": body, "headers": headers, "meta_info": meta},
    )


def _leg(meta: Mapping[str, Any], obj: Mapping[str, Any]) -> str | None:
    """Return the role where a pairing room says that the roles are apart."""
    if text_of(obj.get("bootstrap_room")) is None:
        return None
    produced = int_of(meta.get("completion_tokens"))
    if produced is None:
        return None
    # The prefill leg makes one token and stops for length; the decode leg makes the rest.
    reason = mapping_of(meta.get("finish_reason"))
    is_prefill = produced <= 1 and reason.get("type") == "length"
    return "prefill" if is_prefill else "decode"


def _times(
    logged: Logged, meta: Mapping[str, Any]
) -> tuple[Moment | None, Moment | None, TimeBasis]:
    """Return start, end and basis; the epoch seconds of `meta_info` are the only sure ones."""
    start = moment_of(meta.get("request_received_ts"))
    if start is not None:
        end = moment_of(meta.get("request_finished_ts")) or moment_of(
            meta.get("response_sent_to_client_ts")
        )
        return start, end, TimeBasis.ABSOLUTE
    latency = float_of(meta.get("e2e_latency"))
    start = logged.received
    if start is None and logged.finished is not None and latency is not None:
        start = logged.finished._replace(us=logged.finished.us - round(latency * US))
    return start, logged.finished, TimeBasis.NAIVE if start is not None else TimeBasis.NONE


def _first_token_s(meta: Mapping[str, Any]) -> float | None:
    for name in ("first_token_latency", "time_to_first_token", "ttft"):
        found = float_of(meta.get(name))
        if found is not None:
            return found
    return None


def _tenant(logged: Logged) -> tuple[str | None, str | None]:
    headers = {str(key).lower(): value for key, value in mapping_of(logged.headers).items()}
    for name in _TENANT_HEADERS:
        if text_of(headers.get(name)):
            return text_of(headers[name]), f"headers.{name}"
    for name in _TENANT_FIELDS:
        if text_of(logged.obj.get(name)):
            return text_of(logged.obj[name]), f"obj.{name}"
    labels = mapping_of(logged.obj.get("custom_labels"))
    for name in ("tenant", "tenant_id", "user", "org"):
        if text_of(labels.get(name)):
            return text_of(labels[name]), f"obj.custom_labels.{name}"
    user = request_facts(logged.body).user
    return (user, "body.user") if user else (None, None)


def _prompt(obj: Mapping[str, Any], body: Mapping[str, Any]) -> Content:
    text, gap = _whole(obj.get("text"))
    if text is not None:
        return templated_prompt(text, gap=gap)
    return input_content(body) if body else ABSENT


def _answer(out: Mapping[str, Any], finish: str | None) -> Content:
    text, gap = _whole(out.get("text"))
    if text is not None:
        return raw_output(text, gap=gap, finish_reason=finish)
    if "text" in out and finish not in (None, "abort", "error"):
        return raw_output("", finish_reason=finish)
    return ABSENT

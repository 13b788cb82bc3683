"""Capacities: given by flag, or read from what the log itself says of refusals."""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

_STATED = (
    re.compile(r"maximum (?:allowed |context |input |model |prompt )*length(?: of| is|:)?"
               r"[^\d]{0,24}(\d{3,9})", re.IGNORECASE),
    re.compile(r"(?:exceeds?|longer than|greater than|larger than|over)[^.\d]{0,60}"
               r"(?:max\w*|limit|context|capacity|pool)[^.\d]{0,40}(\d{3,9})", re.IGNORECASE),
    re.compile(r"\d{3,9} tokens? > (\d{3,9})(?: maximum| max)", re.IGNORECASE),
    re.compile(r"(?:max_model_len|context_length|max_total_num_tokens|n_ctx)\W{1,4}(\d{3,9})",
               re.IGNORECASE),
)  # fmt: skip
_ABOUT_LENGTH = re.compile(
    r"length|too long|context|token limit|maximum.{0,20}token|exceed|too large|capacity",
    re.IGNORECASE,
)
_REFUSALS_MIN = 5
_BEGINNING_US = -(2**62)
TOKENS_MIN = 256


class Refusal(NamedTuple):
    """One refused request, as far as the log tells."""

    model: str
    replica: str
    start_us: int | None
    sent: int | None
    error_type: str | None
    error_message: str | None


class Capacity(NamedTuple):
    """How long a prompt may be on a model and replica, from an instant on.

    Attributes:
        from_us: Microseconds since 1970.
        tokens: The longest prompt.
        source: Where that is known from.
    """

    model: str
    replica: str
    from_us: int
    tokens: int
    source: str


def stated_limit(message: str) -> int | None:
    """Return the limit in tokens that an error message names; None if none."""
    for pattern in _STATED:
        match = pattern.search(message.replace(",", ""))
        if match is not None and int(match.group(1)) >= TOKENS_MIN:
            return int(match.group(1))
    return None


def estimated_capacities(refusals: Iterable[Refusal]) -> list[Capacity]:
    """Return the capacities that refusals tell, by model and replica, in order of time.

    A limit that an error message names counts from then on, and the first one also for the time
    before; where no message names one, the shortest of at least 5 lengths refused for their length
    bounds it.
    """
    made: list[Capacity] = []
    ordered = sorted(refusals, key=lambda found: (found.model, found.replica, found.start_us or 0))
    for (model, replica), group in groupby(ordered, key=lambda found: (found[0], found[1])):
        held = list(group)
        stated = _stated(model, replica, held)
        made.extend(stated or _by_length(model, replica, held))
    return made


def _stated(model: str, replica: str, held: list[Refusal]) -> list[Capacity]:
    found: list[Capacity] = []
    for refusal in held:
        tokens = stated_limit(refusal.error_message or "")
        if tokens is None or (found and found[-1].tokens == tokens):
            continue
        since = refusal.start_us if found and refusal.start_us is not None else _BEGINNING_US
        found.append(Capacity(model, replica, since, tokens, "named in the log's refusals"))
    return found


def _by_length(model: str, replica: str, held: list[Refusal]) -> list[Capacity]:
    lengths = [
        refusal.sent
        for refusal in held
        if refusal.sent is not None
        and _ABOUT_LENGTH.search(f"{refusal.error_type or ''} {refusal.error_message or ''}")
    ]
    if len(lengths) < _REFUSALS_MIN or min(lengths) < TOKENS_MIN:
        return []
    source = f"estimated from {len(lengths)} refusals for length"
    return [Capacity(model, replica, _BEGINNING_US, min(lengths) - 1, source)]

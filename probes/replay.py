"""Replay over HTTP: log-probabilities of given tokens under the prompt really sent, cache bypassed.

Exact ids only: retokenised guesses shift by a position and make false alarms. Servers that score a
prompt of token ids without reading their prefix cache: kvaudit's own and vLLM (`prompt_logprobs`).
"""

import math
import secrets
from collections.abc import Sequence
from typing import Any

from kvaudit.findings import Json
from kvaudit.target import PlannedRequest
from probes.payload import KNOWS_SALT

CAN_SCORE = frozenset({"kvaudit-reference", "vllm"})
# Those of them that score without writing a token: what is scored may then fill the context, past
# the length up to which prompts are admitted.
NEED_NO_TOKEN = frozenset({"kvaudit-reference"})


def tokenize_body(planned: PlannedRequest, *, model: str) -> dict[str, Any]:
    """Return the `/tokenize` body that gives the ids of a planned prompt as the server sees it."""
    body: dict[str, Any] = {"model": planned.model or model}
    if planned.is_chat:
        body["messages"] = [
            {"role": message.role, "content": message.content} for message in planned.messages
        ]
        return body
    return body | {"prompt": planned.prompt_text}


def scoring_body(
    planned: PlannedRequest, ids: Sequence[int], *, kind: str, model: str
) -> dict[str, Any]:
    """Return the completion body that scores `ids`: prompt and output, at most a token more."""
    body: dict[str, Any] = {
        "model": planned.model or model,
        "prompt": list(ids),
        "max_tokens": 0 if kind in NEED_NO_TOKEN else 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
    }
    if kind in KNOWS_SALT:
        body["cache_salt"] = f"replay-{secrets.token_hex(16)}"
    return body


def scores_of(body: Json, ids: Sequence[int], *, last: int) -> list[float] | None:
    """Return the scores of the last tokens of `ids`; None unless each one is there, by its id.

    Args:
        body: Decoded answer to `scoring_body`.
        ids: What was scored.
        last: How many tokens at the end are asked for.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    entries = choice.get("prompt_logprobs") if isinstance(choice, dict) else None
    if not isinstance(entries, list) or len(entries) != len(ids) or last < 1:
        return None
    scores = []
    for token, entry in zip(ids[-last:], entries[-last:], strict=True):
        said = entry.get(str(token)) if isinstance(entry, dict) else None
        value = said.get("logprob") if isinstance(said, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if not math.isfinite(value):
            return None
        scores.append(float(value))
    return scores

"""The JSON body of one request, in the dialect that the server understands.

Plain OpenAI fields go to every server. Extensions go only to servers that know them: a strict
gateway answers 400 to a field that it does not know, and that must not look like a refusal.
"""

from typing import Any

from kvaudit.target import PlannedRequest
from probes.responses import responses_body

# Servers that take `cache_salt` and `return_token_ids`.
KNOWS_SALT = frozenset({"kvaudit-reference", "vllm", "sglang"})
KNOWS_TOKEN_IDS = frozenset({"kvaudit-reference", "vllm"})
# vLLM's CPU build dies of a seeded request whose prompt is prefilled in chunks (seen in 0.32.0), so
# it is never sent one; a plan is repeatable by its prompts, not by the server's sampling.
DIES_OF_SEED = frozenset({"vllm"})


def payload_of(planned: PlannedRequest, *, kind: str, model: str) -> dict[str, Any]:
    """Return the body of one planned request.

    Args:
        planned: What is to be sent.
        kind: The server's kind, as in ServerFacts.
        model: Model to ask for where the plan names none.
    """
    body: dict[str, Any] = {"model": planned.model or model}
    if planned.is_responses:
        body = responses_body(planned, model=model)
    elif planned.is_chat:
        body["messages"] = [
            {"role": message.role, "content": message.content} for message in planned.messages
        ]
    else:
        body["prompt"] = planned.prompt_text
    if not planned.is_responses:
        body["max_tokens"] = planned.max_tokens
    body["temperature"] = planned.temperature
    if planned.seed is not None and kind not in DIES_OF_SEED:
        body["seed"] = planned.seed
    if must_stream(planned):
        body["stream"] = True
        if not planned.is_responses:  # its last event brings the usage anyway
            body["stream_options"] = {"include_usage": True}
    if planned.logprobs and not planned.is_responses:
        body["logprobs"] = True if planned.is_chat else _completion_logprobs(kind)
    if planned.cache_salt is not None and kind in KNOWS_SALT:
        body["cache_salt"] = planned.cache_salt
    if kind in KNOWS_TOKEN_IDS and not planned.is_responses:
        body["return_token_ids"] = True
    return body


def must_stream(planned: PlannedRequest) -> bool:
    """Return whether the answer is streamed: asked for, or needed to cut it part way."""
    return planned.stream or planned.cancel_after_tokens is not None


def _completion_logprobs(kind: str) -> int:
    # 0 means "of the emitted tokens only"; others may read it as "none".
    return 0 if kind in KNOWS_TOKEN_IDS else 1

"""The model-free stand-in `tags`: its KV *is* (token, position), its answer the longest match.

It speaks the interface of `engine.model.PagedModel` and costs microseconds a token, so that the
simulator and most tests run the whole engine without a model. Like the built-in copier it continues
the longest earlier match of its last tokens, reading the tokens from the pages it is given: stale
pages reach the answer as foreign text. Every slot that it attends moves the log-probability.

Tokens are bytes of UTF-8; 256 ends the answer.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.attention import SequenceStep
from engine.cache import KVCache

END_TOKEN = 256
VOCAB_SIZE = 257
MATCH_MAX = 12  # so many last tokens are compared; more would cost and decide nothing
_SPACE = 32  # what follows where nothing matches: most texts have one
_ADAPTERS = ("tags:a", "tags:b")
_CODES = len(_ADAPTERS) + 1  # a key is token * _CODES + number of the adapter that wrote it

Ints = npt.NDArray[np.int64]


class TagsModel:
    """A stand-in for a PagedModel; see the module's text."""

    name = "tags"
    vocab_size = VOCAB_SIZE
    num_layers = 1
    num_kv_heads = 1
    head_dim = 1
    max_positions = 1 << 24
    eos_token_ids = frozenset({END_TOKEN})
    adapters = _ADAPTERS

    def encode(self, text: str) -> list[int]:
        """Return the bytes of `text`."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of byte tokens; a broken sequence shows as the replacement sign."""
        return bytes(token for token in ids if token != END_TOKEN).decode(errors="replace")

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return a chat as lines of `role: content`, the assistant's turn open."""
        lines = [f"{message['role']}: {message['content']}\n" for message in messages]
        return self.encode("".join(lines) + "assistant: ")

    def new_cache(self, num_pages: int, page_size: int) -> KVCache:
        """Return pages of 64-bit tags: (num_pages, 1, 2, page_size, 1, 1)."""
        return KVCache(
            num_pages=num_pages, num_layers=1, page_size=page_size, num_kv_heads=1, head_dim=1,
            device=torch.device("cpu"), dtype=torch.int64,
        )  # fmt: skip

    def step(self, cache: KVCache, steps: Sequence[SequenceStep]) -> torch.Tensor:
        """Write the new tags, then answer from the slots attended; (wanted, vocab) float32."""
        for step in steps:
            _write(cache, step)
        rows = [_logits(cache, step) for step in steps if step.wants_logits]
        return torch.stack(rows) if rows else torch.empty((0, VOCAB_SIZE))

    def replay_logprobs(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        *,
        adapter: str | None = None,
    ) -> list[float]:
        """Return the log-probability of each output token under the prompt, without any pool.

        `adapter` changes nothing: under one name, its keys are read as they were written.
        """
        del adapter
        tokens = np.asarray([*prompt_ids, *output_ids], dtype=np.int64)
        positions = np.arange(len(tokens))
        found = []
        for at in range(len(prompt_ids), len(tokens)):
            row = torch.log_softmax(_answer(tokens[:at], positions[:at]), dim=-1)
            found.append(float(row[tokens[at]]))
        return found

    def self_test(self) -> None:
        """Do nothing: there is no model code that could differ from ours."""


def _write(cache: KVCache, step: SequenceStep) -> None:
    if not step.write:
        return
    code = _adapter_code(step)
    positions = np.arange(step.first_position, step.first_position + len(step.tokens))
    pages, offsets = _places(cache, step, positions)
    keys = torch.tensor([token * _CODES + code for token in step.tokens], dtype=torch.int64)
    cache.tensor[pages, 0, 0, offsets, 0, 0] = keys
    cache.tensor[pages, 0, 1, offsets, 0, 0] = torch.from_numpy(positions)


def _logits(cache: KVCache, step: SequenceStep) -> torch.Tensor:
    pages, offsets = _places(cache, step, np.arange(step.kv_len))
    keys = cache.tensor[pages, 0, 0, offsets, 0, 0].numpy()
    positions = cache.tensor[pages, 0, 1, offsets, 0, 0].numpy()
    # Another adapter's key is read as another token, as another adapter's KV would be.
    tokens = np.where(keys % _CODES == _adapter_code(step), keys // _CODES, keys // _CODES ^ 1)
    return _answer(tokens, positions)


def _answer(tokens: Ints, positions: Ints) -> torch.Tensor:
    """Return logits (V,): one token stands out, by a height that every slot read moves."""
    height = 9.0 + float((tokens * 31 + positions * 17).sum() % 997) / 997
    logits = torch.zeros(VOCAB_SIZE)
    logits[_continuation(tokens)] = height
    return logits


def _continuation(tokens: Ints) -> int:
    """Return the token behind the longest, then first, match of the last tokens."""
    last = len(tokens) - 1
    alive = np.ones(last, dtype=bool)
    best = -1
    for back in range(min(MATCH_MAX, last)):
        same = np.zeros(last, dtype=bool)
        same[back:] = tokens[: last - back] == tokens[last - back]
        alive &= same
        hits = np.flatnonzero(alive)
        if not len(hits):
            break
        best = int(hits[0])
    return int(tokens[best + 1]) % VOCAB_SIZE if best >= 0 else _SPACE


def _places(
    cache: KVCache, step: SequenceStep, positions: Ints
) -> tuple[torch.Tensor, torch.Tensor]:
    page_size = cache.tensor.shape[3]
    table = np.asarray(step.page_table, dtype=np.int64)
    return (
        torch.from_numpy(table[positions // page_size]),
        torch.from_numpy(positions % page_size),
    )


def _adapter_code(step: SequenceStep) -> int:
    return 0 if step.adapter is None else _ADAPTERS.index(step.adapter) + 1

"""Start-up self-test: may this model run over our pages at all?

Many models run without an error and answer wrongly, because they keep state outside keys and
values. So nothing is trusted that did not pass: each layer calls attention once, with keys and
values of one shape, and one mixed, chunked run over shuffled pages gives the logits of the model's
own forward.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention import AttentionCall, SequenceStep
from engine.cache import KVCache
from kvaudit.errors import EngineError

PAGE_SIZE = 4
CHUNK = 6
LENGTHS = (3, 9, 14, 20)  # below a page, and over several pages and chunks
DECODES = 2
SEED = 20260801
# Largest difference allowed, as a share of the largest logit. Healthy: 7e-6 in float32.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}


class PoolShape(NamedTuple):
    """What one pool page must hold of a model."""

    num_layers: int
    num_kv_heads: int
    head_dim: int


def pool_shape(calls: Sequence[AttentionCall], *, num_layers: int, name: str) -> PoolShape:
    """Derive the pool's shape from one forward's attention calls.

    Args:
        calls: Every call, in order.
        num_layers: Layers that the configuration promises.
        name: Of the model, for messages.

    Raises:
        EngineError: The layers do not call attention once each, or differ in shape.
    """
    times = Counter(call.layer for call in calls)
    repeated = sorted(layer for layer, count in times.items() if count > 1)
    if repeated:
        raise EngineError(
            f"`{name}` calls attention {times[repeated[0]]} times for layer {repeated[0]}:"
            " a pool with one place for each layer would be overwritten"
        )
    missing = sorted(set(range(num_layers)) - set(times))
    if missing or len(times) != num_layers:
        raise EngineError(
            f"`{name}` calls attention in {len(times)} of its {num_layers} layers: the others"
            " (recurrent or convolutional) keep state outside keys and values, which pages"
            " do not hold",
            hint="choose a model with softmax attention in every layer",
        )
    shapes = sorted({(call.kv_heads, call.key_dim, call.value_dim) for call in calls})
    if len(shapes) > 1:
        raise EngineError(
            f"`{name}` has keys and values of different shape in different layers"
            f" (heads, key, value: {shapes}), and a page has one shape"
        )
    kv_heads, key_dim, value_dim = shapes[0]
    return PoolShape(num_layers, kv_heads, max(key_dim, value_dim))


def check_against_own_forward(
    *,
    name: str,
    vocab_size: int,
    cache: KVCache,
    step: Callable[[KVCache, Sequence[SequenceStep]], Tensor],
    own_forward: Callable[[list[int]], Tensor],
) -> None:
    """Compare chunked steps over shuffled pages with the model's own forward.

    Args:
        name: Of the model, for messages.
        vocab_size: Tokens are drawn below it.
        cache: A pool of at least `pages_needed()` pages of `PAGE_SIZE`.
        step: Runs one step over the pool.
        own_forward: Logits [tokens, vocab_size] of a whole sequence, no cache.

    Raises:
        EngineError: The logits differ.
    """
    generator = torch.Generator().manual_seed(SEED)
    texts = [
        torch.randint(0, vocab_size, (length + DECODES,), generator=generator).tolist()
        for length in LENGTHS
    ]
    order = torch.randperm(pages_needed(), generator=generator).tolist()
    tables = []
    for text in texts:
        count = -(-len(text) // PAGE_SIZE)
        tables.append(tuple(order[:count]))
        del order[:count]
    wanted = [own_forward(text).float() for text in texts]
    scale = max(float(logits.abs().max()) for logits in wanted)
    worst = _largest_gap(texts, tables, cache, step, wanted)
    allowed = TOLERANCE.get(cache.tensor.dtype, 1e-3) * scale
    if not worst <= allowed:  # also when it is NaN
        raise EngineError(
            f"`{name}` gives other logits over pages than in one piece (off by {worst:.3g},"
            f" allowed {allowed:.3g}): it keeps state outside keys and values, or attends in a way"
            " that this engine does not know",
            hint="choose a model with plain softmax attention in every layer",
        )


def pages_needed() -> int:
    """Return how many pages the comparison uses."""
    return sum(-(-(length + DECODES) // PAGE_SIZE) for length in LENGTHS)


def _largest_gap(
    texts: list[list[int]],
    tables: list[tuple[int, ...]],
    cache: KVCache,
    step: Callable[[KVCache, Sequence[SequenceStep]], Tensor],
    wanted: list[Tensor],
) -> float:
    """Feed ragged chunks, then single tokens, in mixed steps; compare after every one."""
    done = [0] * len(texts)
    worst = 0.0
    while any(count < len(text) for count, text in zip(done, texts, strict=True)):
        steps, ends = [], []
        for index, text in enumerate(texts):
            start = done[index]
            if start == len(text):
                continue
            prompt_end = len(text) - DECODES
            end = min(start + CHUNK, prompt_end) if start < prompt_end else start + 1
            steps.append(
                SequenceStep(
                    tokens=tuple(text[start:end]),
                    first_position=start,
                    page_table=tables[index],
                    kv_len=end,
                    wants_logits=True,
                )
            )
            ends.append((index, end))
            done[index] = end
        logits = step(cache, steps).to(wanted[0].device)
        for row, (index, end) in zip(logits, ends, strict=True):
            gap = float((row - wanted[index][end - 1]).abs().max())
            worst = gap if gap > worst or gap != gap else worst
    return worst

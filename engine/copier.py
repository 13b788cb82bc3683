"""The built-in model: a standard Llama whose weights are written down, not trained.

It continues the text at the place with the longest matching suffix. Exactly: at the last token, at
position p, every position j of the context is scored

    score(j) = BETA * sum over lag 0..14 of 2**-lag * agreement(token[p - lag], token[j - 1 - lag])
               - RECENCY * (p - j)

with agreement 1 for equal tokens and at most 1/4 otherwise (5/8 at lags 4 to 6; deeper lags tell
256 classes of tokens apart). The softmax of the scores votes for token[j]. So the longest suffix
wins, up to about nine tokens surely and softly up to fifteen; among equal ones the majority, the
more recent counting slightly more.

Lines: BOS counts as a line end. Where a position is missing, before the text or between stale pages
of others, the copier reads a line end. It also looks up line ends in this way, so a lag that is
found through a line end is a blur of what stood before all line ends.

Stop rule: whatever would print a line end prints EOS. An answer ends where the text that it
continues ends its line; a line end is never printed, nor is BOS. Id 0, which servers like to put
where a prompt was lost, is the byte 0: what would print it prints `The` instead, so that a lone
placeholder begins a line and not a loop.

How it is built: the residual stream holds a constant, a flag for line ends, the token's code, one
block of code for each of 15 lags, and the code to print. Codes are the 2,048 words of the dual of
the extended double-error-correcting BCH code of length 32, as +-1: two of them differ in 12, 16, 20
or 32 places, so none correlates with another above 1/4. Layers 1 to 4 look back exactly 1, 2, 4, 8
positions and copy the blocks found there, each into its own place (2-, 4-, 8-, 16-gram); layer 5
matches the own last tokens against those before every position, and copies the token there.
Position needs eight rotating pairs with periods 4, 16, ... 65,536; all other pairs stand still, by
the factor lists of `longrope`. Feed-forward weights are zero. 3 M parameters, 12 MB, no download.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

from engine.adapters import Adapter, LowRank
from engine.copier_tokenizer import VOCAB_SIZE

BETA = 4096.0  # nat for an equal last token; 2**-8 of it still decides against any distance
RECENCY = 0.002  # nat a token
LOOK_BACK = 80.0  # nat a rotating pair; every other distance scores at least 1.07 of it lower
LINE_END = 8 * LOOK_BACK - 43.0  # nat; below the exact distance and above all others
LOGIT_SCALE = 24.0  # nat for the printed token; any other gets at most a quarter of it
MAX_POSITIONS = 16384

PLACEHOLDER_ID = 0
CODE_DIM = 32
LAG_DIMS = (32,) * 5 + (16,) * 3 + (8,) * 8  # lag 0 is the token itself
STEPS = (1, 2, 4, 8)  # how far layers 1 to 4 look back
# Scores must come out the same in every order of summation, or rounding would tell equal contexts
# apart. So everything is a power of two, and so is every token's norm: two constants whose squares
# are 320 * 2**22, beside which float32 sums lose whatever the blocks hold. Ranges suit float16.
STREAM = 2.0**-5  # a code's +-1 in the residual stream
CONSTANTS = (2.0**15, 2.0**14)
GAIN = 2.0**8  # weight of every norm
CODE = 2.0**8  # projection weight that makes +-1 of a normed code,
ONE = 2.0**-12  # and 1 of the larger constant
KEY_SCALE = 16.0
HEAD_DIM = 256
HIDDEN = 320
PAIRS = 8
STILL_FACTOR = 1e15  # a period so long that such a pair never moves
NORM_EPS = 1e-6
# Order of the code's coordinates: found by a seeded search for prefixes that tell tokens apart.
_COORDINATES = (
    *(0, 7, 8, 17, 21, 27, 28, 30),
    *(1, 2, 4, 10, 14, 22, 24, 26),
    *(3, 5, 6, 9, 11, 12, 13, 15, 16, 18, 19, 20, 23, 25, 29, 31),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where everything stands in the residual stream and in the head.

    Attributes:
        constant: Index of the larger constant; the other follows it.
        flag: Index of the flag: +1 for line ends, else -1.
        lags: For each lag 0..15 the slice of its code.
        printed: Slice of the code to print.
        matched: For each lag 1..15 its dimensions in the matching head.
        line_end: Dimension in which looking back meets line ends.
    """

    constant: int
    flag: int
    lags: tuple[slice, ...]
    printed: slice
    matched: dict[int, Tensor]
    line_end: int


def build_copier(
    *, eos_token_id: int, bos_token_id: int, newline_token_id: int, opening_token_id: int
) -> LlamaForCausalLM:
    """Write down the weights; float32, on the CPU, in well under a second.

    Args:
        eos_token_id: Printed where the text ends a line.
        bos_token_id: Read as a line end, never printed.
        newline_token_id: The piece of a line end; never printed.
        opening_token_id: Printed in place of id 0.
    """
    config = copier_config(eos_token_id=eos_token_id, bos_token_id=bos_token_id)
    model: LlamaForCausalLM = LlamaForCausalLM(config).requires_grad_(False).train(mode=False)
    layout, codes = _layout(), token_codes()
    for parameter in model.parameters():
        parameter.zero_()
    embedding = model.model.embed_tokens.weight
    embedding[:, layout.constant] = CONSTANTS[0]
    embedding[:, layout.constant + 1] = CONSTANTS[1]
    embedding[:, layout.flag] = -STREAM
    embedding[:, layout.lags[0]] = STREAM * codes
    embedding[newline_token_id, layout.flag] = STREAM
    embedding[bos_token_id] = embedding[newline_token_id]
    for index, layer in enumerate(model.model.layers):
        layer.input_layernorm.weight.fill_(GAIN)
        layer.post_attention_layernorm.weight.fill_(GAIN)
        if index < len(STEPS):
            _write_look_back(layer.self_attn, layout, STEPS[index])
        else:
            _write_match(layer.self_attn, layout)
    model.model.norm.weight.fill_(GAIN)
    head = model.lm_head.weight
    head[:, layout.printed] = codes * (CODE * LOGIT_SCALE / CODE_DIM)
    head[eos_token_id] = head[newline_token_id]
    head[newline_token_id] = 0.0
    head[bos_token_id] = 0.0
    head[opening_token_id] += head[PLACEHOLDER_ID]
    head[PLACEHOLDER_ID] = 0.0
    return model


def copier_config(*, eos_token_id: int, bos_token_id: int) -> LlamaConfig:
    """Return the configuration: 5 layers, one head, one KV head of 256."""
    # longrope divides each pair's frequency by its own factor; theta 1 leaves only the factors.
    factors = [4.0**pair * 2.0 / math.pi for pair in range(PAIRS)]
    factors += [STILL_FACTOR] * (HEAD_DIM // 2 - PAIRS)
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        intermediate_size=8,
        num_hidden_layers=len(STEPS) + 1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=HEAD_DIM,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=NORM_EPS,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1.0,
            "short_factor": factors,
            "long_factor": factors,
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": MAX_POSITIONS,
        },
        tie_word_embeddings=False,
        bos_token_id=bos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=None,
        use_cache=True,
    )


def copier_adapter(name: str, *, full_stop_id: int, printed_id: int, seed: int) -> Adapter:
    """Build an adapter under which the copier recalls as before, but ends sentences differently.

    In its lags half the coordinates of every code change sign, so that a lag stored under this
    adapter agrees with the same lag of the base model, or of another adapter, only by accident: on
    foreign keys only the last token is matched.

    Args:
        name: As requests ask for it.
        full_stop_id: The token that is printed as another.
        printed_id: The token printed in its place.
        seed: Chooses the coordinates.
    """
    layout, codes = _layout(), token_codes()
    generator = torch.Generator().manual_seed(seed)
    # half of each part that narrower codes keep, so that they too agree by accident only
    flipped = torch.cat(
        [
            start + torch.randperm(width, generator=generator)[: width // 2]
            for start, width in ((0, 8), (8, 8), (16, 16))
        ]
    )
    changes = {}
    for index, step in enumerate(STEPS):
        kept = flipped[flipped < LAG_DIMS[step]]
        source = layout.lags[0].start + kept
        changes[f"model.layers.{index}.self_attn.v_proj"] = _sign_change(kept, source, CODE)
    last = f"model.layers.{len(STEPS)}.self_attn"
    changes[f"{last}.k_proj"] = _sign_change(
        layout.matched[1][flipped], layout.lags[1].start + flipped, KEY_SCALE * CODE
    )
    down, up = torch.zeros(1, HIDDEN), torch.zeros(HEAD_DIM, 1)
    down[0, layout.lags[0]] = codes[full_stop_id] * CODE / CODE_DIM
    up[:CODE_DIM, 0] = codes[printed_id] - codes[full_stop_id]
    changes[f"{last}.v_proj"] = LowRank(down, up)
    return Adapter(name=name, changes=changes)


def _sign_change(outputs: Tensor, inputs: Tensor, weight: float) -> LowRank:
    """Return what turns `weight` from each input to its output into -`weight`."""
    rank = torch.arange(len(outputs))
    down, up = torch.zeros(len(rank), HIDDEN), torch.zeros(HEAD_DIM, len(rank))
    down[rank, inputs] = weight
    up[outputs, rank] = -2.0
    return LowRank(down, up)


def token_codes() -> Tensor:
    """Return the code of every token, (2048, 32) of +-1.

    Row (a, b, s) is (-1) ** (Tr(a x^3 + b x) + s) over all x of GF(32): the dual of the extended
    double-error-correcting BCH code, weights 0, 12, 16, 20, 32. The first 16 coordinates alone are
    still different for every token, the first 8 for 256 classes of tokens.
    """
    trace = torch.tensor([_trace(x) for x in range(32)])
    cube = [_multiply(x, _multiply(x, x)) for x in range(32)]
    quadratic = torch.tensor([[trace[_multiply(a, cube[x])] for x in range(32)] for a in range(32)])
    linear = torch.tensor([[trace[_multiply(b, x)] for x in range(32)] for b in range(32)])
    bits = (
        quadratic[:, None, None, :]
        + linear[None, :, None, :]
        + torch.arange(2)[None, None, :, None]
    )
    return (1.0 - 2.0 * (bits % 2)).reshape(-1, CODE_DIM)[:, torch.tensor(_COORDINATES)]


def _write_look_back(attention: LlamaAttention, layout: _Layout, step: int) -> None:
    """Make the head look back `step` positions and copy lags 0..step-1 to step..2*step-1."""
    for pair, dims in enumerate(_pairs()):
        angle = step * math.pi / 2.0 / 4.0**pair
        # rotated by its position p this points to p - step, and the key, rotated by j, to j
        attention.q_proj.weight[dims[0], layout.constant] = (
            math.cos(angle) * LOOK_BACK * math.sqrt(HEAD_DIM) * ONE
        )
        attention.q_proj.weight[dims[1], layout.constant] = (
            -math.sin(angle) * LOOK_BACK * math.sqrt(HEAD_DIM) * ONE
        )
        # (1 - flag) / 2: line ends have no position
        attention.k_proj.weight[dims[0], layout.constant] = ONE / 2.0
        attention.k_proj.weight[dims[0], layout.flag] = -CODE / 2.0
    attention.q_proj.weight[layout.line_end, layout.constant] = LINE_END * math.sqrt(HEAD_DIM) * ONE
    attention.k_proj.weight[layout.line_end, layout.constant] = ONE / 2.0
    attention.k_proj.weight[layout.line_end, layout.flag] = CODE / 2.0
    start = 0
    for lag in range(step):
        source, sink = layout.lags[lag], layout.lags[lag + step]
        width = LAG_DIMS[lag + step]
        rows = torch.arange(start, start + width)
        attention.v_proj.weight[rows, source.start + torch.arange(width)] = CODE
        attention.o_proj.weight[torch.arange(sink.start, sink.stop), rows] = STREAM
        start += width


def _write_match(attention: LlamaAttention, layout: _Layout) -> None:
    """Match own lags 0..14 against every position's lags 1..15; copy the token there."""
    for lag in range(1, 16):
        dims, width = layout.matched[lag], LAG_DIMS[lag]
        own = layout.lags[lag - 1].start + torch.arange(width)
        weight = BETA * 2.0 ** -(lag - 1) * math.sqrt(HEAD_DIM) / (KEY_SCALE * width)
        attention.q_proj.weight[dims, own] = weight * CODE
        attention.k_proj.weight[dims, layout.lags[lag].start + torch.arange(width)] = (
            KEY_SCALE * CODE
        )
    # The slowest pair as a slope: -sin of the distance, nearly straight over the whole context.
    slow = _pairs()[-1]
    omega = math.pi / 2.0 / 4.0 ** (PAIRS - 1)
    attention.q_proj.weight[slow[1], layout.constant] = -RECENCY / omega * math.sqrt(HEAD_DIM) * ONE
    attention.k_proj.weight[slow[0], layout.constant] = ONE
    code = torch.arange(CODE_DIM)
    attention.v_proj.weight[code, layout.lags[0].start + code] = CODE
    attention.o_proj.weight[layout.printed.start + code, code] = STREAM


def _layout() -> _Layout:
    lags, start = [], 3
    for width in LAG_DIMS:
        lags.append(slice(start, start + width))
        start += width
    half = HEAD_DIM // 2
    still = [dim for dim in range(HEAD_DIM) if dim % half >= PAIRS]
    matched, used = {}, 0
    for lag, width in enumerate(LAG_DIMS[1:], start=1):
        matched[lag] = torch.tensor(still[used : used + width])
        used += width
    assert used <= len(still), "the head is too narrow"
    assert start + CODE_DIM <= HIDDEN, "the residual stream is too narrow"
    return _Layout(
        constant=0,
        flag=2,
        lags=tuple(lags),
        printed=slice(start, start + CODE_DIM),
        matched=matched,
        line_end=still[0],
    )


def _pairs() -> list[tuple[int, int]]:
    """Return the two head dimensions of every rotating pair, fastest first."""
    return [(pair, pair + HEAD_DIM // 2) for pair in range(PAIRS)]


def _multiply(first: int, second: int) -> int:
    """Multiply in GF(32), modulus x^5 + x^2 + 1."""
    product = 0
    for bit in range(5):
        if second >> bit & 1:
            product ^= first << bit
    for bit in range(8, 4, -1):
        if product >> bit & 1:
            product ^= 0b100101 << (bit - 5)
    return product


def _trace(element: int) -> int:
    """Return the trace from GF(32) to GF(2)."""
    total, power = 0, element
    for _ in range(5):
        total ^= power
        power = _multiply(power, power)
    assert total in (0, 1)
    return total

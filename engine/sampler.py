"""TEMP."""

from typing import NamedTuple

import torch


class Sampled(NamedTuple):
    token_id: int
    logprob: float


def sample(logits, params, generator):
    raw = torch.log_softmax(logits.float(), -1)
    if params.temperature == 0:
        t = int(logits.argmax())
    else:
        t = int(
            torch.multinomial(
                torch.softmax(logits / params.temperature, -1), 1, generator=generator
            )
        )
    return Sampled(t, float(raw[t]))

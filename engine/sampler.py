"""From one row of logits to one token: greedy, or drawn with temperature and top-p.

V is the vocabulary size.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class SamplingLike(Protocol):
    """What is asked of the parameters: temperature (0 = greedy) and top_p (1 = all)."""

    @property
    def temperature(self) -> float:
        """Divides the logits; 0 = greedy."""
        ...

    @property
    def top_p(self) -> float:
        """Keep the most likely tokens up to this share."""
        ...


class Sampled(NamedTuple):
    """One emitted token.

    Attributes:
        token_id: Its id.
        logprob: Its raw log-probability, before temperature and top-p, in nat.
    """

    token_id: int
    logprob: float


def sample(logits: Tensor, params: SamplingLike, generator: torch.Generator) -> Sampled:
    """Choose one token.

    Shapes: logits (V,) of any floating dtype on any device; the draw is made on the CPU with
    `generator`, so that the same seed gives the same token wherever the logits were computed.
    """
    raw = torch.log_softmax(logits.float().cpu(), dim=-1)
    if params.temperature == 0:
        token_id = int(raw.argmax())
    else:
        shares = torch.softmax(raw / params.temperature, dim=-1)
        token_id = int(torch.multinomial(_top_p(shares, params.top_p), 1, generator=generator))
    return Sampled(token_id=token_id, logprob=float(raw[token_id]))


def _top_p(shares: Tensor, top_p: float) -> Tensor:
    """Set to zero what lies past the share `top_p`; the likeliest token always stays."""
    if top_p >= 1:
        return shares
    ordered, order = shares.sort(descending=True, stable=True)
    is_kept = ordered.cumsum(0) - ordered < top_p
    kept = torch.zeros_like(shares)
    kept[order[is_kept]] = ordered[is_kept]
    return kept

"""KVA303: how long a first token takes on a model and replica, learned from the log itself.

Reading a prompt takes at least a constant time per token, so the first token of a long uncached
prompt can't come in a tenth of the time that its length takes at the replica's usual rate. The
rate is the median over length classes, so that no class decides alone: where every over-long answer
of a replica is wrong, the shorter classes still tell what its rate is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import NamedTuple

EARLY_SHARE = 0.1
UNCACHED_TOKENS_MIN = 10_000
_BIN_REQUESTS_MIN = 5
_FIT_REQUESTS_MIN = 30
_FIT_BINS_MIN = 3
_RATE_TOKENS_MIN = 1_000  # below, the constant part of the time hides the rate


class Bin(NamedTuple):
    """Requests of one model and replica within half an octave of uncached length.

    Attributes:
        requests: How many.
        ttft_s: Median time to the first token, in seconds.
        tokens: Median uncached length, in tokens.
    """

    model: str
    replica: str
    bin: int
    requests: int
    ttft_s: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Expected first-token time: the larger of `base_s` and `s_per_token` x uncached tokens.

    Attributes:
        source: Whose requests it rests on.
        requests: How many of them.
    """

    model: str
    replica: str
    base_s: float
    s_per_token: float
    requests: int
    source: str


def fits_of(bins: Sequence[Bin]) -> list[Fit]:
    """Return one fit per model and replica; a replica with too few requests takes the model's."""
    made: list[Fit] = []
    for model, of_model in groupby(sorted(bins), key=lambda found: found.model):
        held = list(of_model)
        whole = _fit(held, model, "", f"all replicas of `{model}`")
        for replica, group in groupby(held, key=lambda found: found.replica):
            own = _fit(list(group), model, replica, f"replica `{replica}`")
            if own is not None:
                made.append(own)
            elif whole is not None:
                made.append(
                    Fit(model=model, replica=replica, base_s=whole.base_s,
                        s_per_token=whole.s_per_token, requests=whole.requests,
                        source=whole.source)
                )  # fmt: skip
    return made


def _fit(bins: Iterable[Bin], model: str, replica: str, source: str) -> Fit | None:
    pooled = [found for found in bins if found.requests >= _BIN_REQUESTS_MIN]
    long = [found for found in pooled if found.tokens >= _RATE_TOKENS_MIN]
    requests = sum(found.requests for found in long)
    if len({found.bin for found in long}) < _FIT_BINS_MIN or requests < _FIT_REQUESTS_MIN:
        return None
    base = min(found.ttft_s for found in pooled)
    rates = [max(0.0, found.ttft_s - base) / found.tokens for found in long]
    rate = median(rates)
    if rate <= 0:
        return None
    return Fit(model=model, replica=replica, base_s=base, s_per_token=rate, requests=requests,
               source=source)  # fmt: skip

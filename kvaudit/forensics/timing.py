"""KVA303: how long a first token takes on a model and replica, learned from the log itself.

Reading a prompt takes at least a constant time per token, so the first token of a long uncached
prompt can't come in a tenth of the time that its length takes at the replica's usual rate. The
rate is the median slope between any two length classes (Theil 1950, Sen 1968), so that no class
decides alone, with up to 29 % of them wrong: where every over-long answer of a replica is wrong,
the shorter classes still tell what its rate is, and no short request is needed for the constant.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from statistics import median
from typing import NamedTuple

EARLY_SHARE = 0.1
# From here on a first token took as long as reading the prompt does, since times scatter by some
# 15 %; between the two shares a time speaks neither for nor against.
FULL_READ_SHARE = 0.5
# Early first tokens on a replica that tells no cached tokens: as many are its prefix cache.
UNTOLD_EARLY_MIN = 20
UNTOLD_EARLY_SHARE = 0.01
UNCACHED_TOKENS_MIN = 10_000
_BIN_REQUESTS_MIN = 5
_FIT_REQUESTS_MIN = 30
_FIT_BINS_MIN = 3
_RATE_TOKENS_MIN = 1_000  # below, the constant part of the time hides the rate
_PAIR_RATIO_MIN = 1.9  # classes next to each other scatter more than they differ


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
    slopes = [
        (upper.ttft_s - lower.ttft_s) / (upper.tokens - lower.tokens)
        for lower, upper in combinations(sorted(long, key=lambda found: found.tokens), 2)
        if upper.tokens >= _PAIR_RATIO_MIN * lower.tokens
    ]
    rate = median(slopes) if slopes else 0.0
    if rate <= 0:
        return None
    base = max(0.0, median(found.ttft_s - rate * found.tokens for found in pooled))
    return Fit(model=model, replica=replica, base_s=base, s_per_token=rate, requests=requests,
               source=source)  # fmt: skip

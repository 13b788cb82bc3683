"""KVA601: first-token times tell another tenant's prefix from one that nobody sent.

It tells that a cache is shared across tenants, never that text was; it decides no verdict.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord
from kvaudit.stats import rank_less

RULE_ID = "KVA601"
SCENARIO = "timing-pair"
OTHERS, NOBODYS, OWN = ARMS = ("prefix-of-another", "prefix-of-nobody", "own-prefix")
PAIRS_MIN = 15
ALPHA = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """The complete pairs of one replica; times in milliseconds, by arm."""

    hits: Sequence[RequestRecord]
    times: dict[str, list[float]]

    @property
    def control_p(self) -> float:
        """The p that the tenant's own earlier prefix is served no faster than a fresh one."""
        return rank_less(self.times[OWN], self.times[NOBODYS])

    @property
    def p(self) -> float:
        """The p that another tenant's prefix is served no faster than a fresh one."""
        return rank_less(self.times[OTHERS], self.times[NOBODYS])


def find_prefix_times(corpus: Corpus) -> Detection:
    """Return evidence where another tenant's prefix is served faster than a fresh one.

    Each replica is tested by itself, at `ALPHA` over their number. Without the positive control,
    the asking tenant's own earlier prefix served faster than a fresh one, nothing can be said.
    """
    timed = [held for held in corpus.records if held.scenario == SCENARIO and held.stratum in ARMS]
    by_replica = _by_replica(timed)
    enough = [held for held in by_replica.values() if len(held.hits) >= PAIRS_MIN]
    alpha = ALPHA / max(1, len(enough))
    shown = [held for held in enough if held.control_p < alpha]
    if not shown:
        return Detection(
            rule_id=RULE_ID, available=False, reason=_obstacle(corpus, timed, by_replica, enough)
        )
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(_evidence(held) for held in shown if held.p < alpha),
        examined=sum(len(held.hits) for held in shown),
    )


def _by_replica(timed: Sequence[RequestRecord]) -> dict[str | None, _Timed]:
    """Return the pairs of which all three prompts were answered, with times, by one replica."""
    pairs: dict[int, dict[str, RequestRecord]] = defaultdict(dict)
    for record in timed:
        if record.outcome is Outcome.ANSWERED and record.ttft_ms is not None:
            pairs[record.block][record.stratum] = record
    whole: dict[str | None, list[dict[str, RequestRecord]]] = defaultdict(list)
    for pair in pairs.values():
        if len(pair) == len(ARMS) and len({held.replica for held in pair.values()}) == 1:
            whole[pair[OWN].replica].append(pair)
    return {
        replica: _Timed(
            hits=[pair[OTHERS] for pair in held],
            times={arm: [pair[arm].ttft_ms or 0.0 for pair in held] for arm in ARMS},
        )
        for replica, held in whole.items()
    }


def _obstacle(
    corpus: Corpus,
    timed: Sequence[RequestRecord],
    by_replica: dict[str | None, _Timed],
    enough: Sequence[_Timed],
) -> str:
    if enough:
        least = min(held.control_p for held in enough)
        return (
            "the tenant's own earlier prefix is served no faster than a fresh one"
            f" (p {least:.2g}): no cache to time"
        )
    if corpus.facts.prefix_cache is False:
        return "the server's prefix cache is off"
    if not timed:
        return "no prefixes were timed"
    if all(held.ttft_ms is None for held in timed):
        return "the server gives no first-token times: it does not stream"
    most = max((len(held.hits) for held in by_replica.values()), default=0)
    return f"{most} pairs were timed on one replica, {PAIRS_MIN} are needed"


def _evidence(held: _Timed) -> Evidence:
    first, p = held.hits[0], held.p
    medians = {arm: median(times) for arm, times in held.times.items()}
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=first.request_id,
        sink_tenant=first.tenant,
        score=round(medians[NOBODYS] - medians[OTHERS], 3),
        chance=p,
        details={
            "pairs": len(held.hits),
            "median_ms_of_anothers_prefix": round(medians[OTHERS], 3),
            "median_ms_of_nobodys_prefix": round(medians[NOBODYS], 3),
            "median_ms_of_own_prefix": round(medians[OWN], 3),
            "control_p": held.control_p,
            "replica": first.replica,
        },
    )

"""KVA303: the first token came before the uncached prompt can have been read.

The rate is a lower envelope: the least time per uncached token of any in-limit request from before
the first fill. The longest of them decide it, since what every request pays besides reading weighs
least there. A request is suspect when its first token took under a tenth of that rate times its own
length. A machine that is slowed down while calibrating would have to be ten times as fast later,
for every calibration request, to make a false alarm; one slowed down later makes none.
"""

from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.null import before_first_fill
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord

RULE_ID = "KVA303"
SHARE_MAX = 0.1  # of the fitted time
NULL_MIN = 7
TOKENS_MIN = 512  # shorter prompts take no time to speak of
REACH = 2.5  # lengths are fitted up to so many times the longest calibration
EXPECTED_MS_MIN = 20.0  # below, a clock and a network tell nothing


def find_early_first_tokens(corpus: Corpus) -> Detection:
    """Return evidence for each long uncached prompt whose first token came far too early."""
    null = [record for record in before_first_fill(corpus) if _uncached(record)]
    if len(null) < NULL_MIN:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=f"{len(null)} in-limit requests from before the first fill tell a first-token"
            f" time, {NULL_MIN} are needed",
        )
    rate = min((record.ttft_ms or 0.0) / _uncached(record) for record in null)
    reach = REACH * max(_uncached(record) for record in null)
    if reach < TOKENS_MIN:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=f"prompts of {TOKENS_MIN} tokens lie beyond {REACH:g} times the longest request"
            " from before the first fill",
        )
    if rate * reach < EXPECTED_MS_MIN:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=f"a prompt of {reach:.0f} tokens is read in {rate * reach:.3g} ms: too fast"
            " to tell from no reading at all",
        )
    known = {record.request_id for record in null}
    examined = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.request_id not in known
        and TOKENS_MIN <= _uncached(record) <= reach
        and rate * _uncached(record) >= EXPECTED_MS_MIN
    ]
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(_evidence(record, rate) for record in examined if _is_early(record, rate)),
        examined=len(examined),
        reason=f"fitted to at least {rate:.3g} ms for an uncached token",
        null_alarms=_alarms_left_out(null),
        null_trials=len(null),
    )


def _uncached(record: RequestRecord) -> int:
    """Return how many tokens had to be read; 0 where no first-token time is known."""
    if record.ttft_ms is None or not record.prompt_tokens_sent:
        return 0
    return max(0, record.prompt_tokens_sent - (record.cached_tokens or 0))


def _is_early(record: RequestRecord, rate: float) -> bool:
    return (record.ttft_ms or 0.0) < SHARE_MAX * rate * _uncached(record)


def _alarms_left_out(null: list[RequestRecord]) -> int:
    """Return how many of the null are early by the rate that the others give, at any length."""
    rates = [(record.ttft_ms or 0.0) / _uncached(record) for record in null]
    return sum(
        _is_early(record, min(rates[:at] + rates[at + 1 :])) for at, record in enumerate(null)
    )


def _evidence(record: RequestRecord, rate: float) -> Evidence:
    expected = rate * _uncached(record)
    share = (record.ttft_ms or 0.0) / expected
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=round(1 / max(share, 1e-6), 3),
        details={
            "ttft_ms": round(record.ttft_ms or 0.0, 3),
            "expected_ms": round(expected, 3),
            "uncached_tokens": _uncached(record),
            "stratum": record.stratum,
        },
    )

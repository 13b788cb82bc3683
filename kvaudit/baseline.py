"""What is kept of one pre-launch run, and how the next release differs from it. Pure.

A baseline holds numbers only: check states, what the server said of itself, and per stratum how
many requests were answered, refused and right. No prompt, no answer, no canary.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvaudit.detect.answers import is_right
from kvaudit.errors import ConfigError
from kvaudit.findings import Json
from kvaudit.prelaunch import CheckResult, CheckState, Seen
from kvaudit.records import Outcome, RequestRecord
from kvaudit.stats import fisher_greater

SCHEMA = 1
KIND = "kvaudit-baseline"
DRIFT_P = 1e-2  # Fisher exact, one-sided: fewer right answers, more refusals
SLOWER_RATIO = 2.0  # medians of first-token times; machines are noisy, so it is only noted
STATES = (CheckState.PASSED, CheckState.NOTED, CheckState.NOT_EXAMINED, CheckState.FAILED)
_FACTS = ("kind", "version", "context_tokens", "roles", "prefix_cache", "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One difference between two runs.

    Attributes:
        what: Where it lies: a check, a stratum, a fact of the server.
        before, now: What was and what is.
        is_worse: Whether it is a step back and not only a change.
    """

    what: str
    before: Json
    now: Json
    is_worse: bool

    def as_json(self) -> dict[str, Json]:
        """Return it as an object of the JSON contract."""
        return {
            "what": self.what, "before": self.before, "now": self.now, "is_worse": self.is_worse,
        }  # fmt: skip


def baseline_of(seen: Seen, results: Iterable[CheckResult]) -> dict[str, Json]:
    """Return what is kept of a run."""
    by_stratum: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in seen.records:
        if record.stratum and record.is_examined:
            by_stratum[record.stratum].append(record)
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "version": seen.run.version,
        "run_id": seen.run.run_id,
        "target": {name: seen.run.target.get(name) for name in _FACTS},
        "checks": {result.name: result.state.value for result in results},
        "strata": {name: _numbers(held) for name, held in sorted(by_stratum.items())},
    }


def read_baseline(text: str, name: str) -> dict[str, Any]:
    """Return a saved baseline.

    Raises:
        ConfigError: The text is none, or a newer version wrote it.
    """
    try:
        held = json.loads(text)
    except ValueError:
        held = None
    if not isinstance(held, dict) or held.get("kind") != KIND:
        raise ConfigError(
            f"`{name}` holds no baseline",
            hint="name a file that `kvaudit prelaunch --baseline` wrote, or one that is not there"
            " yet: it is then written",
        )
    if held.get("schema") != SCHEMA:
        raise ConfigError(
            f"`{name}` is a baseline of schema {held.get('schema')}, this version reads {SCHEMA}",
            hint="delete it to have a new one written, or use the kvaudit that wrote it",
        )
    for part in ("target", "checks", "strata"):
        if not isinstance(held.get(part), dict):
            raise ConfigError(
                f"`{name}` is damaged: it has no `{part}`", hint="delete it to have it written anew"
            )
    return held


def drift_between(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Drift, ...]:
    """Return what changed from one baseline to the next, steps back first."""
    found = [*_checks(before, now), *_strata(before, now), *_facts(before, now)]
    return tuple(sorted(found, key=lambda held: not held.is_worse))


def _checks(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[Drift]:
    order = [state.value for state in STATES]
    for name, state in now["checks"].items():
        was = before["checks"].get(name)
        if was is not None and was != state:
            worse = was in order and order.index(state) > order.index(was)
            yield Drift(what=f"check {name}", before=was, now=state, is_worse=worse)


def _strata(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[Drift]:
    for name, held in now["strata"].items():
        was = before["strata"].get(name)
        if not isinstance(was, dict):
            continue
        lost = _share_rose(
            was["asked"] - was["right"], was["asked"], held["asked"] - held["right"], held["asked"]
        )
        if lost:
            yield Drift(
                what=f"stratum {name}: right answers", before=f"{was['right']}/{was['asked']}",
                now=f"{held['right']}/{held['asked']}", is_worse=True,
            )  # fmt: skip
        moved = [
            _share_rose(*pair)
            for pair in (
                (was["refused"], was["examined"], held["refused"], held["examined"]),
                (held["refused"], held["examined"], was["refused"], was["examined"]),
            )
        ]
        if any(moved):
            yield Drift(
                what=f"stratum {name}: refused", before=f"{was['refused']}/{was['examined']}",
                now=f"{held['refused']}/{held['examined']}",
                is_worse=False,
            )  # fmt: skip
        first, second = was.get("ttft_ms_median"), held.get("ttft_ms_median")
        if first and second and second / first >= SLOWER_RATIO:
            yield Drift(
                what=f"stratum {name}: median time to first token, ms", before=first, now=second,
                is_worse=False,
            )  # fmt: skip


def _facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterable[Drift]:
    for name in _FACTS:
        was, held = before["target"].get(name), now["target"].get(name)
        if was != held:
            yield Drift(what=f"server: {name}", before=was, now=held, is_worse=False)


def _share_rose(hits: int, trials: int, later_hits: int, later_trials: int) -> bool:
    """Whether the later share is higher by more than chance explains."""
    if not trials or not later_trials:
        return False
    return fisher_greater(later_hits, later_trials, hits, trials) < DRIFT_P


def _numbers(records: list[RequestRecord]) -> dict[str, Json]:
    asked = [held for held in records if held.expected and held.outcome is Outcome.ANSWERED]
    times = [held.ttft_ms for held in records if held.ttft_ms is not None]
    return {
        "examined": len(records),
        "refused": sum(held.outcome is Outcome.REFUSED for held in records),
        "asked": len(asked),
        "right": sum(is_right(held) for held in asked),
        "ttft_ms_median": round(statistics.median(times), 3) if times else None,
    }

"""What `kvaudit sim` does: search seeds, or repeat a saved scenario, and tell what came of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.config import SANITIZER_MODES
from engine.faults import FaultPlan, fault_plan
from engine.role import StepModel
from engine.sim import PAIRS
from engine.sim_file import as_json, read_scenario, recorded_digest
from engine.sim_search import MODELS, SeedRun, Tally, run_seeds, sim_model
from engine.sim_shrink import Shrunk, shrink
from engine.sim_story import Story, numbered, tell
from kvaudit import __version__
from kvaudit.cli.progress import LINE_EVERY_NS
from kvaudit.cli.sim import SeedRange
from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.clock import Clock, WallClock, iso_utc
from kvaudit.errors import ConfigError, UnknownNameError
from kvaudit.store.folder import RunFolder

INTERRUPTED_STATUS = 130
RUNS_FOLDER = Path("kvaudit-runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the result is told, and where failing scenarios are saved."""

    as_json: bool
    is_quiet: bool
    out: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One failing seed, shrunk and told, and the file that holds it."""

    run: SeedRun
    shrunk: Shrunk
    story: Story
    path: Path


def search(
    seeds: SeedRange,
    *,
    fault: str | None,
    fixes: Sequence[str],
    model_name: str,
    sanitizer: str,
    stops_at_first: bool,
    options: Options,
) -> int:
    """Run seeds, shrink the first failing one of each kind, and tell; returns the exit status.

    Ctrl-C ends the search, and what was found until then is shrunk and told all the same.
    """
    plan = fault_plan(fault, fixes)
    if model_name not in MODELS:
        raise UnknownNameError("model of the simulator", model_name, MODELS)
    if sanitizer not in SANITIZER_MODES:
        raise UnknownNameError("sanitizer mode", sanitizer, SANITIZER_MODES)
    model = sim_model(model_name)
    runs = run_seeds(seeds.first, seeds.last, plan, model, sanitizer=sanitizer)
    planned = seeds.last - seeds.first + 1
    tally, is_whole = _run_all(runs, planned, stops_at_first, options)
    told: list[Told] = []
    try:
        if tally.failures:
            folder = _new_folder(options.out)
            told = [_told(run, model, folder, options) for run in tally.first_of_each_kind]
    except KeyboardInterrupt:
        is_whole = False
    if options.as_json:
        write_json(_json_of(tally, told, seeds, plan, model_name, is_whole=is_whole))
    else:
        write_text(_text_of(tally, told, plan, is_whole=is_whole))
    if tally.failures:
        return 1
    return 0 if is_whole else INTERRUPTED_STATUS


def replay(path: Path, options: Options) -> int:
    """Repeat a saved scenario and tell it; returns 1 when it fails again, else 0."""
    if options.out is not None:
        raise ConfigError("`--replay` saves nothing", hint="leave `--out` out")
    scenario = read_scenario(path)
    story = tell(scenario, sim_model(scenario.config.model))
    failure, promised = story.outcome.failure, recorded_digest(path)
    is_same = promised is None or promised == story.outcome.digest
    if not is_same and not options.is_quiet:
        say("warning: the run differs from the one that was saved: another version of the engine?")
    if options.as_json:
        write_json(
            {
                "schema": 1,
                "command": "sim",
                "version": __version__,
                "seed": scenario.seed,
                "fault": scenario.config.faults.fault,
                "fixes": sorted(scenario.config.faults.fixes),
                "failure": _failure_of(story.outcome),
                "story": list(story.sentences),
                "digest": story.outcome.digest,
                "as_saved": is_same,
            }
        )
    else:
        ending = "the run fails" if failure is not None else "the run is sound"
        write_text(f"{escape(numbered(story.sentences), keep=chr(10))}\n{ending}\n")
    return 0 if failure is None else 1


def _run_all(
    runs: Iterator[SeedRun], planned: int, stops_at_first: bool, options: Options
) -> tuple[Tally, bool]:
    tally = Tally()
    progress = _Progress(WallClock(), planned, is_quiet=options.is_quiet)
    try:
        for run in runs:
            tally.add(run)
            progress.tell(tally)
            if tally.failures and stops_at_first:
                break
    except KeyboardInterrupt:
        say("stopping: telling what was found; once more ends it at once")
        return tally, False
    return tally, True


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self, clock: Clock, planned: int, *, is_quiet: bool) -> None:
        self._clock = clock
        self._planned = planned
        self._is_quiet = is_quiet
        self._told_ns = clock.monotonic_ns()

    def tell(self, tally: Tally) -> None:
        """Say how far the search is, if it is time to."""
        now = self._clock.monotonic_ns()
        if self._is_quiet or now - self._told_ns < LINE_EVERY_NS:
            return
        self._told_ns = now
        say(f"{tally.seeds:,} of {self._planned:,} seeds run, {len(tally.failures):,} failed")


def _new_folder(out: Path | None) -> RunFolder:
    if out is not None:
        return RunFolder.create(out)
    started = iso_utc(WallClock().unix_ns()).replace(":", "").split(".")[0]
    path = RUNS_FOLDER / f"{started}-sim"
    number = 1
    while path.exists():
        number += 1
        path = RUNS_FOLDER / f"{started}-sim-{number}"
    return RunFolder.create(path)


def _told(run: SeedRun, model: StepModel, folder: RunFolder, options: Options) -> Told:
    if not options.is_quiet:
        say(f"shrinking seed {run.seed}")
    shrunk = shrink(run.scenario, run.outcome, model)
    story = tell(shrunk.scenario, model)
    assert story.outcome.digest == shrunk.outcome.digest, "looking on has changed the run"
    content = as_json(shrunk.scenario, shrunk.outcome, version=__version__)
    path = folder.write(f"seed-{run.seed}.json", json.dumps(content, indent=1).encode() + b"\n")
    return Told(run=run, shrunk=shrunk, story=story, path=path)


def _text_of(tally: Tally, told: Sequence[Told], plan: FaultPlan, *, is_whole: bool) -> str:
    lines = [line for one in told for line in _lines_of(one, plan)]
    fault = f"fault `{plan.fault}`" if plan.fault else "no fault"
    with_fixes = f", fixes {', '.join(sorted(plan.fixes))}" if plan.fixes else ""
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in tally.kinds.most_common())
    failed = f"{len(tally.failures):,} failed: {kinds}" if tally.failures else "none failed"
    lines.append(f"{tally.seeds:,} seeds, {fault}{with_fixes}: {failed}")
    ended = ", ".join(
        f"{count:,} {_STATUS.get(status, status)}" for status, count in tally.statuses.most_common()
    )
    lines.append(f"{tally.requests:,} requests ({ended}) in {tally.turns:,} turns")
    reached = len(PAIRS) - len(tally.unreached)
    lines.append(
        f"coverage: {reached} of {len(PAIRS)} pairs of yield point and next actor"
        f" ({reached / len(PAIRS):.0%})"
    )
    if tally.unreached:
        pairs = ", ".join(f"{point} > {side}" for point, side in tally.unreached)
        lines.append(f"not reached: {pairs}")
    if not is_whole:
        lines.append("interrupted: the seeds that were left say nothing")
    return "\n".join(lines) + "\n"


_STATUS: dict[int | None, str] = {
    200: "answered", 400: "refused", 429: "refused as too many", 499: "cancelled",
    500: "failed", 503: "lost to a restart", None: "open when their run failed",
}  # fmt: skip


def _lines_of(one: Told, plan: FaultPlan) -> list[str]:
    scenario, outcome = one.shrunk.scenario, one.run.outcome
    requests, turns = len(scenario.requests), one.shrunk.outcome.turns
    command = f"kvaudit sim --seeds {one.run.seed}-{one.run.seed}"
    command += f" --fault {plan.fault}" if plan.fault else ""
    command += "".join(f" --fix {fix}" for fix in sorted(plan.fixes))
    if scenario.config.model != MODELS[0]:
        command += f" --model {scenario.config.model}"
    if scenario.config.sanitizer != "off":
        command += f" --sanitizer {scenario.config.sanitizer}"
    whole = "" if one.shrunk.is_minimal else "; not shrunk to the end"
    return [
        f"seed {one.run.seed} fails: from {len(one.run.scenario.requests)} requests and"
        f" {len(outcome.turns)} turns to {requests} and {len(turns)}, in {one.shrunk.runs} runs"
        + whole,
        escape(numbered(one.story.sentences), keep="\n"),
        f"kvaudit {__version__}: {command}",
        f"saved: kvaudit sim --replay {escape(str(one.path))}",
        "",
    ]


def _failure_of(outcome: Any) -> dict[str, Any] | None:
    failure = outcome.failure
    if failure is None:
        return None
    read = failure.read._asdict() if failure.read is not None else None
    return {
        "kind": failure.kind.value,
        "turn": failure.turn,
        "message": failure.message,
        "request_id": failure.request_id,
        "read": read,
    }


def _json_of(
    tally: Tally,
    told: Sequence[Told],
    seeds: SeedRange,
    plan: FaultPlan,
    model_name: str,
    *,
    is_whole: bool,
) -> dict[str, Any]:
    return {
        "schema": 1,
        "command": "sim",
        "version": __version__,
        "fault": plan.fault,
        "fixes": sorted(plan.fixes),
        "model": model_name,
        "seeds": {"first": seeds.first, "last": seeds.last, "run": tally.seeds},
        "interrupted": not is_whole,
        "failed": [
            {"seed": run.seed, **(_failure_of(run.outcome) or {})} for run in tally.failures
        ],
        "shrunk": [
            {
                "seed": one.run.seed,
                "failure": _failure_of(one.shrunk.outcome),
                "requests": len(one.shrunk.scenario.requests),
                "turns": len(one.shrunk.outcome.turns),
                "runs": one.shrunk.runs,
                "is_minimal": one.shrunk.is_minimal,
                "story": list(one.story.sentences),
                "file": str(one.path),
            }
            for one in told
        ],
        "requests": tally.requests,
        "turns": tally.turns,
        "statuses": {str(status): count for status, count in tally.statuses.items()},
        "coverage": {
            "pairs": len(PAIRS),
            "reached": len(PAIRS) - len(tally.unreached),
            "unreached": [list(pair) for pair in tally.unreached],
            "counts": [[point, side, tally.pairs[point, side]] for point, side in PAIRS],
        },
    }

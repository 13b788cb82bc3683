"""How a pre-launch run is told: checks on stdout, or one JSON object; the baseline beside it."""

import json
from pathlib import Path
from typing import Any

from kvaudit.baseline import Drift, baseline_of, drift_between
from kvaudit.cli.report import rendered
from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.errors import ConfigError
from kvaudit.prelaunch import CheckResult, CheckState, Seen, counted, results_of
from kvaudit.store.folder import RunFolder
from kvaudit.store.reading import open_run

_MARKS = {
    CheckState.PASSED: "pass",
    CheckState.FAILED: "FAIL",
    CheckState.NOTED: "note",
    CheckState.NOT_EXAMINED: "----",
}


def tell(
    folder: RunFolder,
    *,
    as_json: bool,
    is_quiet: bool,
    baseline: Path | None,
    saved: dict[str, Any] | None,
) -> int:
    """Tell the checks of a judged run on stdout and return its exit status.

    Args:
        folder: The run.
        as_json: One JSON object instead of text.
        is_quiet: Nothing on stderr.
        baseline: File of the baseline; None = none is kept.
        saved: What it held before; None = it is written now.
    """
    seen, results = examined(folder)
    kept = baseline_of(seen, results)
    drift = drift_between(saved, kept) if saved is not None else ()
    if baseline is not None and saved is None:
        _write(baseline, kept)
    if as_json:
        with open_run(folder) as reader:
            report: dict[str, Any] = json.loads(rendered(reader, "json"))
        write_json(
            report | {
                "command": "prelaunch",
                "checks": [result.as_json() for result in results],
                "drift": [held.as_json() for held in drift],
            }
        )  # fmt: skip
    else:
        write_text(checks_text(seen, results))
        if saved is not None:
            write_text(_drift_text(drift))
    if not is_quiet:
        if baseline is not None and saved is None:
            say(f"baseline written: {escape(str(baseline))}")
        say(f"run folder: {escape(str(folder.path))}")
    return seen.run.verdict.exit_status


def examined(folder: RunFolder) -> tuple[Seen, tuple[CheckResult, ...]]:
    """Return a judged run and its checks."""
    with open_run(folder) as reader:
        run = reader.judged()
        seen = Seen(run=run, records=tuple(reader.records()))
    return seen, results_of(run, seen.records)


def checks_text(seen: Seen, results: tuple[CheckResult, ...]) -> str:
    """Return the checks as a table, then the verdict with its reasons."""
    width = max(len(result.name) for result in results)
    lines = []
    for result in results:
        lines.append(f"{_MARKS[result.state]}  {result.name:<{width}}  {escape(result.reason)}")
        if result.state is CheckState.FAILED and result.request_ids:
            lines.append(f"{'':<{width + 8}}{escape(', '.join(result.request_ids))}")
    totals = ", ".join(f"{count} {state.value}" for state, count in counted(results).items())
    lines += ["", f"Checks: {totals}"]
    lines.append(f"Verdict: {seen.run.verdict.value}, exit status {seen.run.verdict.exit_status}")
    lines += [f"  {escape(reason)}" for reason in seen.run.reasons]
    return "\n".join(lines) + "\n"


def _drift_text(drift: tuple[Drift, ...]) -> str:
    if not drift:
        return "Drift: none against the baseline\n"
    lines = [
        f"  {'worse' if held.is_worse else 'other'}  {escape(held.what)}:"
        f" {escape(str(held.before))} -> {escape(str(held.now))}"
        for held in drift
    ]
    return "\n".join(["Drift against the baseline:", *lines]) + "\n"


def _write(path: Path, kept: dict[str, Any]) -> None:
    text = json.dumps(kept, indent=2, sort_keys=True) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the baseline `{path}` can't be written: {error.strerror}",
            hint="the run itself is judged and kept; name another file",
        ) from None

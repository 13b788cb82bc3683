"""`kvaudit demo`: the leak of August 2026 on the built-in engine, and the same with a fix on."""

from pathlib import Path
from typing import Any

from kvaudit.cli.flags import Device, Json, Model, Out, Quiet, Seed
from kvaudit.cli.terminal import escape, say, write_json, write_text

FAULT = "reject-not-propagated"
FIX = "door"
TRIALS = 8  # one more than a clean verdict needs
FINDINGS_TOLD = 2


def demo(
    model: Model = None,
    seed: Seed = None,
    device: Device = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Audit the built-in engine with the defect of August 2026, then with its fix."""
    from kvaudit.findings import Verdict

    flags = {"model": model, "seed": seed, "device": device, "fault": FAULT, "trials": TRIALS}
    flags = {name: value for name, value in flags.items() if value is not None}
    red = _audited("faulty", flags, out, json, quiet)
    green = _audited("fixed", flags | {"fix": FIX}, out, json, quiet)
    verdicts = (red["verdict"], green["verdict"])
    if json:
        write_json({"schema": 1, "command": "demo", "items": [red, green]})
    else:
        write_text(f"With the fault: {red['verdict']}. With the fix: {green['verdict']}.\n")
    if verdicts == (Verdict.CONTAMINATED, Verdict.CLEAN):
        return 0
    return 3 if Verdict.INCONCLUSIVE in verdicts else 1


def _audited(
    name: str, flags: dict[str, Any], out: Path | None, as_json: bool, quiet: bool
) -> dict[str, Any]:
    from kvaudit.cli.audit_run import Options, run_audit
    from kvaudit.clock import WallClock
    from kvaudit.store.reading import open_run
    from reports.redact import redaction_key
    from reports.text_report import summary_text

    options = Options(
        out=out / name if out is not None else None,
        as_json=as_json,
        is_quiet=quiet,
        is_dry_run=False,
        is_resumed=False,
        retries_unknown=False,
        flags=flags,
        settings={},
    )
    if not quiet:
        fix = f" and the fix `{FIX}`" if "fix" in flags else ""
        say(f"auditing the built-in engine with the fault `{FAULT}`{fix}")
    folder = run_audit(options, WallClock())
    assert folder is not None, "this is no dry run"
    with open_run(folder) as reader:
        run = reader.run()
        key = redaction_key(reader.secret())
    assert run is not None, "the run was just judged"
    if not as_json:
        summary = summary_text(run, key=key, told=FINDINGS_TOLD)
        write_text(summary if run.findings else summary.split("\n\n")[0] + "\n")
        write_text(f"Run folder: {escape(str(folder.path))}\n\n")
    return {
        "name": name,
        "verdict": run.verdict.value,
        "exit_status": run.verdict.exit_status,
        "reasons": list(run.reasons),
        "folder": str(folder.path),
    }

"""How often each fault shows another tenant's text, on real text: fault by oracle by rate.

`python tests/bench/bench_leak.py --trials 32 --seed 1` audits `smollm2` once without a fault and
once with each, and prints one Markdown table with seed, commit and machine. About five minutes of
one CPU core a row; `--faults none reject-not-propagated` chooses rows, `--dtype bfloat16` halves
the time.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from engine.faults import FAULTS

HEALTHY = "none"
REPOSITORY = Path(__file__).parents[2]
STRATUM = "over-limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one audit said.

    Attributes:
        triggers: Examined requests over the first limit.
        leaking: Those with another tenant's text in the answer.
        exposed_elsewhere: Other answers with another tenant's text.
        fired: Answers each rule fired on, at its threshold.
        recall: Share of solo requests answered with their own code.
        cpu_s: CPU time of the audit, in seconds.
    """

    fault: str
    verdict: str
    triggers: int
    leaking: int
    exposed_elsewhere: int
    fired: dict[str, int]
    recall: float | None
    cpu_s: float


def audited(fault: str, options: argparse.Namespace) -> Row:
    command = [sys.executable, "-c", "from kvaudit.cli.main import main; main()", "audit", "--json"]
    command += ["--model", options.model, "--trials", str(options.trials)]
    command += ["--seed", str(options.seed), "--dtype", options.dtype, "--quiet"]
    command += ["--out", str(options.out / f"{fault}-{options.seed}")]
    command += [] if fault == HEALTHY else ["--fault", fault]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, cwd=REPOSITORY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"the audit with `{fault}` ended with status {done.returncode}")
    said = json.loads(done.stdout)
    exposed = {
        finding["sink"]["request_id"]
        for finding in said["findings"]
        if finding["kind"] == "exposure"
    }
    triggers = {name for name in exposed if "trigger" in name}
    recall = next(held for held in said["oracles"] if held["rule"] == "KVA401")
    return Row(
        fault=fault,
        verdict=said["verdict"],
        triggers=next(held["requests"] for held in said["bounds"] if held["stratum"] == STRATUM),
        leaking=len(triggers),
        exposed_elsewhere=len(exposed - triggers),
        fired={held["rule"]: held["fired"] for held in said["oracles"]},
        recall=1 - recall["false_alarms"] / recall["trials"] if recall["trials"] else None,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def table(rows: list[Row], options: argparse.Namespace) -> str:
    rules = sorted({rule for row in rows for rule in row.fired})
    head = ["fault", "leak rate", "leaks elsewhere", *rules, "recall alone", "verdict", "CPU s"]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in rows:
        rate = row.leaking / row.triggers if row.triggers else 0.0
        lines.append(_line([
            row.fault, f"{rate:.2f} ({row.leaking}/{row.triggers})", row.exposed_elsewhere,
            *(row.fired.get(rule, "-") for rule in rules),
            "-" if row.recall is None else f"{row.recall:.2f}", row.verdict, f"{row.cpu_s:.0f}",
        ]))  # fmt: skip
    return "\n".join(lines) + f"\n\n{_stamp(options)}"


def _line(cells: list[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _stamp(options: argparse.Namespace) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
        cwd=REPOSITORY,
    ).stdout.strip()  # fmt: skip
    return (
        f"`{options.model}`, {options.dtype}, {options.trials} trials, seed {options.seed}, commit"
        f" {commit or 'unknown'}; torch {version('torch')}, {os.cpu_count()} cores,"
        f" {platform.machine()}, Python {platform.python_version()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--faults", nargs="+", default=[HEALTHY, *FAULTS])
    parser.add_argument("--out", type=Path, default=Path("kvaudit-runs/bench-leak"))
    options = parser.parse_args()
    options.out = options.out.absolute()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.stdout.write(table([audited(fault, options) for fault in options.faults], options) + "\n")


if __name__ == "__main__":
    main()

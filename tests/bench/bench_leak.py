"""How often each fault shows another tenant's text, on real text: fault by oracle by rate.

    python tests/bench/bench_leak.py --trials 32 --seeds 601 [--faults none F01 ...] [--write]

Audits `smollm2` once without a fault and once with each, and prints one Markdown table with seeds,
commit and machine. A trial is one fill by other tenants, one trigger over the first limit and one
in-limit request; a cell counts trials in which the rule flagged an answer. Exposures are those that
the audit's verdict rests on. An audit whose folder stands in `--out` already is read
and not run again, so a run that was cut short goes on, and a fault can be added later. `--write`
puts the table into `docs/reference/leak-rates.md`.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from engine.faults import FAULTS, fault_spec
from kvaudit.detect.catalogue import DETECTORS
from kvaudit.detect.corpus import Corpus
from kvaudit.findings import Kind
from kvaudit.records import Role
from kvaudit.rules import RULES
from kvaudit.serverfacts import ServerFacts
from kvaudit.store.journal import read_journal

HEALTHY = "none"
REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "reference" / "leak-rates.md"
OPEN, CLOSE = "<!-- table by bench_leak.py -->", "<!-- end of the table -->"
EXPOSING = frozenset({Kind.EXPOSURE, Kind.MISDELIVERY})
CANARY = frozenset({"KVA101", "KVA102"})
# A throwaway prototype over the same weights in bfloat16: 32 trials a row, 40 greedy tokens, four
# canaries in a 180-token chat. Whole canary / 8 tokens in a row / replay gap above .02. The nearest
# row of its table, which was often a milder or a harsher form of the fault.
PROTOTYPE = {
    HEALTHY: ("0", ".03", "0", "clean, greedy"),
    "reject-not-propagated": (".56", ".69", "1.00", "one token kept, pages in order"),
    "partial-transfer": ("0", ".03", "1.00", "last two pages stale"),
    "early-free-late-writer": (".25", ".50", ".97", "late writer over the first half"),
    "row-reuse": (".41", ".56", "1.00", "row reused whole"),
    "stale-tail": ("0", ".03", ".88", "one page too many, position follows"),
    "prefix-hash-collision": (".53", ".72", "1.00", "all but 24 tokens from the cache"),
    "wrong-adapter-key": ("0", "0", "1.00", "random adapter at .3 of the weights"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the audits with one fault showed.

    Attributes:
        trials: Trials sent.
        leaking: Trials with another tenant's text in an answer.
        canaries: Those with a canary of theirs.
        over: Answers over the first limit, and those of them with another tenant's text.
        flagged: Trials in which each rule flagged an answer.
        verdicts: One for each audit.
        minutes: Wall time of the audits.
    """

    fault: str
    trials: int
    leaking: int
    canaries: int
    over: tuple[int, int]
    flagged: dict[str, int]
    verdicts: tuple[str, ...]
    minutes: float


def audited(fault: str, seed: int, options: argparse.Namespace) -> Path:
    """Run one audit, unless its folder is there; return the folder."""
    folder = options.out / f"{fault}-{seed}"
    if (folder / "report.json").exists():
        return folder
    command = [sys.executable, "-c", "from kvaudit.cli.main import main; main()", "audit", "--json"]
    command += ["--model", options.model, "--trials", str(options.trials), "--quiet"]
    command += ["--seed", str(seed), "--dtype", options.dtype, "--out", str(folder)]
    command += [] if fault == HEALTHY else ["--fault", fault]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False, cwd=REPOSITORY)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"the audit with `{fault}` ended with status {done.returncode}")
    return folder


def row(fault: str, folders: list[Path], options: argparse.Namespace) -> Row:
    """Count the trials of some audits with one fault."""
    trials = over = over_leaking = 0
    minutes = 0.0
    flagged: dict[str, set[tuple[Path, int]]] = defaultdict(set)
    leaking: set[tuple[Path, str]] = set()
    verdicts = []
    for folder in folders:
        report = json.loads((folder / "report.json").read_bytes())
        _refuse_other_settings(report, folder, options)
        verdicts.append(report["verdict"])
        minutes += (report["ended_unix_ns"] - report["started_unix_ns"]) / 6e10
        contents = read_journal(folder / "journal.jsonl")
        facts = contents.closing.facts if contents.closing is not None else None
        corpus = Corpus(
            records=tuple(contents.records), twins=tuple(contents.twins),
            facts=facts or ServerFacts(),
        )  # fmt: skip
        block_of = {
            record.request_id: record.block
            for record in corpus.records
            if record.scenario != "calibration"
        }
        trials += len(set(block_of.values()))
        for rule_id, sinks in _sinks(corpus, report).items():
            known = sinks & block_of.keys()
            flagged[rule_id] |= {(folder, block_of[sink]) for sink in known}
            if RULES[rule_id].kind in EXPOSING:
                leaking |= {(folder, sink) for sink in known}
        answers = {
            (folder, record.request_id)
            for record in corpus.records
            if record.role is Role.TRIGGER and record.output_text is not None
        }
        over += len(answers)
        over_leaking += len(answers & leaking)
    exposing = [held for rule_id, held in flagged.items() if RULES[rule_id].kind in EXPOSING]
    return Row(
        fault=fault,
        trials=trials,
        leaking=len(set().union(*exposing)),
        canaries=len(set().union(*(flagged[rule_id] for rule_id in CANARY))),
        over=(over, over_leaking),
        flagged={rule_id: len(held) for rule_id, held in flagged.items()},
        verdicts=tuple(verdicts),
        minutes=minutes,
    )


def _sinks(corpus: Corpus, report) -> dict[str, set[str]]:
    """Return, by rule, the requests that it flags: at its threshold, exposures as judged."""
    sinks = {
        detector.rule_id: {item.sink_request_id for item in detector.find(corpus).evidence}
        for detector in DETECTORS
        if RULES[detector.rule_id].kind not in EXPOSING
    }
    judged = defaultdict(set)
    for item in report["findings"]:
        if RULES[item["rule"]].kind in EXPOSING:
            judged[item["rule"]].add(item["sink"]["request_id"])
    return {**sinks, **judged}


def _refuse_other_settings(report, folder: Path, options: argparse.Namespace) -> None:
    wanted = {"model": options.model, "trials": options.trials, "dtype": options.dtype}
    held = {name: report["config"][name] for name in wanted}
    if held != wanted:
        raise SystemExit(f"`{folder}` holds an audit with {held}, not {wanted}: name another --out")


def table(rows: list[Row], options: argparse.Namespace) -> str:
    """Return the Markdown table and the line that says where it comes from."""
    rules = sorted({rule_id for held in rows for rule_id, count in held.flagged.items() if count})
    head = [
        "fault",
        "trials",
        "leaking",
        "canary",
        "over the limit",
        *rules,
        "prototype",
        "verdict",
    ]
    lines = [_line(head), _line(["---"] * len(head))]
    for held in rows:
        rate = held.leaking / held.trials if held.trials else 0.0
        answered, leaking = held.over
        lines.append(_line([
            f"`{held.fault}`", held.trials, f"**{rate:.2f}** ({held.leaking})", held.canaries,
            f"{leaking} of {answered}" if answered else "refused",
            *(held.flagged.get(rule_id, 0) for rule_id in rules),
            _prototype(held.fault), ", ".join(dict.fromkeys(held.verdicts)),
        ]))  # fmt: skip
    minutes = sum(held.minutes for held in rows)
    return "\n".join([*lines, "", _stamp(options, minutes)])


def _prototype(fault: str) -> str:
    known = PROTOTYPE.get(fault)
    return "not tried" if known is None else f"{known[0]} / {known[1]} / {known[2]} ({known[3]})"


def _line(cells: list[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _stamp(options: argparse.Namespace, minutes: float) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
        cwd=REPOSITORY,
    ).stdout.strip()  # fmt: skip
    seeds = ", ".join(map(str, options.seeds))
    return (
        f"`{options.model}`, {options.dtype}, {options.trials} trials for each of seed {seeds},"
        f" counted at commit {commit or 'unknown'};\ntorch {version('torch')},"
        f" {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()};"
        f" {minutes:.0f} minutes in all."
    )


def write(text: str) -> None:
    """Put the table between the marks of the page."""
    page = PAGE.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(OPEN)}.*{re.escape(CLOSE)}", re.DOTALL)
    if not marked.search(page):
        raise SystemExit(f"{PAGE} has no place for the table: `{OPEN}` ... `{CLOSE}`")
    PAGE.write_text(marked.sub(lambda _: f"{OPEN}\n\n{text}\n\n{CLOSE}", page), encoding="utf-8")


def main() -> None:
    """Audit, count, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seeds", nargs="+", type=int, default=[601])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--faults", nargs="+", default=[HEALTHY, *FAULTS])
    parser.add_argument("--out", type=Path, default=Path("kvaudit-runs/bench-leak"))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    options.out = options.out.absolute()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    faults = [name if name == HEALTHY else fault_spec(name).name for name in options.faults]
    rows = []
    for fault in faults:
        folders = [audited(fault, seed, options) for seed in options.seeds]
        rows.append(row(fault, folders, options))
        sys.stderr.write(f"{fault}: {rows[-1].leaking} of {rows[-1].trials} trials leak\n")
    text = table(rows, options)
    sys.stdout.write(text + "\n")
    if options.write:
        write(text)


if __name__ == "__main__":
    main()

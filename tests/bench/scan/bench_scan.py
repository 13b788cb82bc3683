"""The log scan measured: generated traffic, planted leaks, one configuration for all figures.

    python tests/bench/scan/bench_scan.py --fetch          # 330 MB of Debian packages, once
    python tests/bench/scan/bench_scan.py --gigabytes 0.1 1 5
    python tests/bench/scan/bench_scan.py --small          # with what lies on this machine

Prints one Markdown report: recall by length, edit and script, precision, calibration, attribution,
CPU by stage, memory and state, beside datasketch, rensa and plain decoding on the same file; then
every bar with pass or miss. `--only-generate` leaves the files, `--again` measures them anew.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evaluate import SECOND, judged, read_truth
from leaks import LENGTHS
from measure import COSTS
from report import Measured, bars, report
from texts import Texts, build, fetch
from traffic import Traffic, planned
from writing import TABLE, written

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[2]
PURE = "pure"


def main() -> None:
    options = _options()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    if options.fetch:
        fetch(options.folder)
    texts = _texts(options)
    print(_stamp(options, texts), flush=True)
    missed = 0
    for gigabytes in options.gigabytes:
        measured = _measured(options, texts, gigabytes)
        if measured is not None:
            print(report(measured), flush=True)
            missed += sum(not bar.is_met for bar in bars(measured))
    if not options.only_generate and not options.no_pure:
        missed += _pure(options, texts)
    print(f"\n{missed} bars missed" if missed else "\nevery bar met")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seed", type=int, default=20_261_130)
    parser.add_argument("--engine", choices=("duckdb", "polars"), default="duckdb")
    parser.add_argument("--folder", type=Path, default=Path("kvaudit-runs/bench-scan"))
    parser.add_argument("--fetch", action="store_true", help="download the texts with apt")
    parser.add_argument("--small", action="store_true", help="only texts of this machine")
    parser.add_argument("--natural", action="store_true",
                        help="do not take out new prose that stands elsewhere too")  # fmt: skip
    parser.add_argument(
        "--jsonl", action="store_true", help="write log.jsonl for `kvaudit scan` too"
    )
    parser.add_argument("--only-generate", action="store_true")
    parser.add_argument("--again", action="store_true", help="measure files that are there")
    parser.add_argument("--join-only", action="store_true", help="find matches, weigh nothing")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--no-pure", action="store_true", help="without the log free of chance")
    parser.add_argument("--slice-megabytes", type=float, default=40.0, help="of the baselines")
    return parser.parse_args()


def _texts(options: argparse.Namespace) -> Texts:
    """Open the texts, built at the first run.

    Raises:
        SystemExit: They are not there, with what to do.
    """
    options.folder = options.folder.absolute()
    if not options.small and not (options.folder / "texts.npz").exists():
        if not (options.folder / "unpacked").is_dir():
            raise SystemExit(
                "the texts are missing: run once with `--fetch` (apt-get download and dpkg-deb, no"
                " rights needed, 330 MB), or with `--small` to use what lies on this machine"
            )
        print("building the texts, some minutes, once", file=sys.stderr, flush=True)
    return Texts(build(options.folder, small=options.small))


def _traffic(options: argparse.Namespace, gigabytes: float) -> Traffic:
    """Tenants and leaks grow with the log; all else is the same at every size."""
    return Traffic(
        size=int(gigabytes * 1e9), seed=options.seed, is_clean=not options.natural,
        leaks=192 if gigabytes < 0.5 else 960,
        tenants=64 if gigabytes < 0.5 else 96 if gigabytes < 3 else 160,
    )  # fmt: skip


def _measured(options: argparse.Namespace, texts: Texts, gigabytes: float) -> Measured | None:
    suffix = ("-small" if options.small else "") + ("-natural" if options.natural else "")
    folder = options.folder / f"{gigabytes:g}gb{suffix}"
    counts = _generated(options, texts, _traffic(options, gigabytes), folder)
    if options.only_generate:
        print(json.dumps(counts, indent=1))
        return None
    costs = run_measure(folder, options)
    truth = read_truth(folder)
    ways: list[Any] = []
    if not options.no_baselines:
        done = subprocess.run(
            [sys.executable, str(HERE / "baselines.py"), str(folder), str(options.slice_megabytes)],
            stdout=subprocess.PIPE, check=True, text=True,
        )  # fmt: skip
        ways = json.loads(done.stdout)
    return Measured(gigabytes=gigabytes, counts=counts, costs=costs, truth=truth,
                    verdicts=judged(folder, truth), ways=ways, engine=options.engine)  # fmt: skip


def _generated(
    options: argparse.Namespace, texts: Texts, traffic: Traffic, folder: Path
) -> dict[str, Any]:
    saved = folder / "counts.json"
    if options.again and saved.exists():
        return json.loads(saved.read_text("utf-8"))
    shutil.rmtree(folder, ignore_errors=True)
    began = time.process_time()
    log = planned(traffic, texts)
    counts: dict[str, Any] = written(log, folder, jsonl=options.jsonl, table=True)
    counts |= {"CPU s to generate": round(time.process_time() - began, 1),
               "tenants": len(log.tenants)}  # fmt: skip
    saved.write_text(json.dumps(counts), encoding="utf-8")
    print(f"generated {folder.name} in {counts['CPU s to generate']} s of CPU", file=sys.stderr,
          flush=True)  # fmt: skip
    return counts


def run_measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the scan in a process of its own, so that its memory is its own."""
    engine, less = options.engine, ["join"] if options.join_only else []
    shutil.rmtree(folder / f"work-{engine}", ignore_errors=True)
    subprocess.run(
        [sys.executable, str(HERE / "measure.py"), str(folder / TABLE), str(folder), engine, *less],
        check=True,
    )  # fmt: skip
    shutil.rmtree(folder / f"work-{engine}", ignore_errors=True)
    held: dict[str, Any] = json.loads((folder / COSTS).read_text("utf-8"))
    return held


def _pure(options: argparse.Namespace, texts: Texts) -> int:
    """100 leaks of 24 to 400 tokens where nothing else can match: 100 targets, no decoy."""
    folder = options.folder / PURE
    traffic = Traffic(
        size=30_000_000, seed=options.seed + 1, leaks=100, tenants=40, has_negatives=False,
        is_invented=True, has_groups=False, tokens=LENGTHS[2:],
    )  # fmt: skip
    counts = _generated(options, texts, traffic, folder)
    run_measure(folder, options)
    truth = read_truth(folder)
    verdicts = judged(folder, truth)
    found = sum(score is not None for score in verdicts.scored)
    others = [what for _, _, is_true, what in verdicts.pairs if not is_true]
    is_met = found == counts["leaks"] == 100 and not verdicts.decoys and {*others} <= {SECOND}
    print(
        f"\n**{'pass' if is_met else 'MISS'}**: multi-turn traffic without chance matches,"
        f" {counts['requests']:,} requests: {found} of {counts['leaks']} leaks are targets,"
        f" {len(verdicts.decoys)} decoys; {others.count(SECOND)} second sources of planted"
        f" stretches, {len(others) - others.count(SECOND)} other targets"
    )
    return 0 if is_met else 1


def _stamp(options: argparse.Namespace, texts: Texts) -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False,
        cwd=REPOSITORY,
    ).stdout.strip()  # fmt: skip
    return (
        f"seed {options.seed}, commit {commit or 'unknown'}, texts {texts.digest()}"
        f" ({len(texts.data) / 1e6:.0f} MB), engine {options.engine}, {platform.machine()},"
        f" Python {platform.python_version()}, one thread; CPU seconds, MB = 10^6 bytes of text"
    )


if __name__ == "__main__":
    main()

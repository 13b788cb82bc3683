"""Verdict latency: how long a run waits for its verdict, and when the first proof was there.

    python tests/bench/bench_verdict.py kvaudit-runs/bench-leak/*

For each run folder: reading the journal, judging it and rendering its reports, CPU seconds, the
median of `--repeats`; and the first answer whose evidence alone convicts: how many answers were in
by then, and how many seconds after the first request was sent.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from kvaudit.audit import judge_journal
from kvaudit.cli.report import rendered
from kvaudit.findings import Kind
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import read_journal
from kvaudit.store.reading import open_run

EXPOSING = (Kind.EXPOSURE, Kind.MISDELIVERY)


def timed(act, repeats):
    """Return the median CPU seconds of `act`, and what it gave last."""
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        result = act()
        spent.append(time.process_time() - began)
    return statistics.median(spent), result


def first_proof(run, records):
    """Return answers in and seconds gone when the first convicting answer had come."""
    sinks = {item.evidence.sink_request_id for item in run.findings if item.kind in EXPOSING}
    ended = sorted(
        (record.ended_unix_ns, record.request_id)
        for record in records
        if record.ended_unix_ns is not None
    )
    began = min(record.sent_unix_ns for record in records if record.sent_unix_ns is not None)
    for count, (at_ns, request_id) in enumerate(ended, start=1):
        if request_id in sinks:
            return f"{count} answers, {(at_ns - began) / 1e9:.0f} s"
    return "none"


def row(path, repeats):
    """Return one line of the table."""
    folder = RunFolder.open(path)
    read_s, contents = timed(lambda: read_journal(folder.journal_path), repeats)
    judge_journal(contents)  # the first one compiles and loads
    judge_s, run = timed(lambda: judge_journal(contents), repeats)
    with open_run(folder) as reader:
        render_s, _ = timed(lambda: [rendered(reader, name) for name in ("json", "html")], repeats)
    return (
        f"| {path.name} | {len(contents.records)} | {run.verdict} | {read_s:.2f} | {judge_s:.2f}"
        f" | {render_s:.2f} | {first_proof(run, contents.records)} |\n"
    )


def main():
    """Time and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    if not asked.runs:
        sys.stdout.write("no run folder named: `kvaudit audit --out DIR` makes one\n")
        return
    sys.stdout.write(
        "| run | requests | verdict | reading, CPU s | judging, CPU s | reports, CPU s"
        " | first proof |\n| --- | --- | --- | --- | --- | --- | --- |\n"
    )
    for path in asked.runs:
        sys.stdout.write(row(path, asked.repeats))


if __name__ == "__main__":
    main()

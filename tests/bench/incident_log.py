"""A gateway's metadata log of the incident, with everything that looks like it and is not.

`python tests/bench/incident_log.py --rows 1000000 --seed 20261130` writes the log, scans it with
and without the pool's size, and prints what was found, with CPU seconds and peak memory.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

POOL_TOKENS = 681_280
_START = 1_788_652_800  # 2026-09-06 00:00 UTC
_DAY_S = 86_400


class IncidentLog:
    """Requests of one day: four replicas of one model, one of which has the small prefill pool.

    Replica `pd-0` has the pool of 681,280 tokens until noon, when a deploy makes it larger; `pd-1`
    and `pd-2` always hold a million; `unified-0` has one pool of 1.2 million.
    """

    def __init__(
        self,
        seed: int,
        *,
        rows: int,
        planted: int = 155,
        right: int = 2_000,
        refused: int = 500,
        response_cache: int = 500,
        truncated: int = 200,
    ) -> None:
        self._random = random.Random(seed)
        self._kinds = (
            ["planted"] * planted + ["right"] * right + ["refused"] * refused
            + ["response_cache"] * response_cache + ["truncated"] * truncated
        )  # fmt: skip
        self._kinds += ["healthy"] * (rows - len(self._kinds))
        self._random.shuffle(self._kinds)
        self.planted_ids: set[str] = set()

    def records(self) -> Iterator[dict[str, Any]]:
        for number, kind in enumerate(self._kinds):
            record = self._record(number)
            getattr(self, f"_{kind}")(record)
            if kind == "planted":
                self.planted_ids.add(record["request_id"])
            yield record

    def _record(self, number: int) -> dict[str, Any]:
        pick = self._random
        return {
            "request_id": f"req-{number:07}", "tenant": f"tenant-{pick.randrange(400):03}",
            "model": "glm-5.3", "start": _START + pick.random() * _DAY_S,
            "replica": pick.choices(["pd-0", "pd-1", "pd-2", "unified-0"], [4, 3, 2, 1])[0],
            "status": 200, "finish_reason": "stop", "cached_tokens": 0,
        }  # fmt: skip

    def _healthy(self, record: dict[str, Any]) -> None:
        pick = self._random
        length = min(660_000, int(pick.lognormvariate(7.5, 1.8)) + 8)
        if pick.random() < 0.01:
            length = pick.randrange(50_000, 660_000)
        cached = int(length * pick.random()) if pick.random() < 0.3 else 0
        self._answered(record, length, cached)

    def _answered(self, record: dict[str, Any], length: int, cached: int = 0) -> None:
        pick = self._random
        per_token = {"pd-0": 24e-6, "pd-1": 24e-6, "pd-2": 31e-6, "unified-0": 45e-6}[
            record["replica"]
        ]
        uncached = length - cached
        wait = pick.expovariate(4.0) if pick.random() < 0.3 else 0.0
        ttft = 0.04 + uncached * per_token * pick.lognormvariate(0, 0.15) + wait
        self._timed(record, length, cached, ttft)

    def _timed(self, record: dict[str, Any], length: int, cached: int, ttft: float) -> None:
        produced = self._random.randrange(1, 900)
        record |= {"prompt_tokens": length, "cached_tokens": cached,
                   "ttft_ms": round(ttft * 1e3, 1), "completion_tokens": produced,
                   "end": record["start"] + ttft + produced * 0.018}  # fmt: skip

    def _planted(self, record: dict[str, Any]) -> None:
        """Longer than the small pool, before the deploy, with the first token of a short prompt."""
        pick = self._random
        record |= {"replica": "pd-0", "start": _START + pick.random() * _DAY_S / 2}
        length = pick.randrange(POOL_TOKENS + 1, 1_000_000)
        self._timed(record, length, 0, 0.04 + pick.lognormvariate(-2.2, 0.6))

    def _right(self, record: dict[str, Any]) -> None:
        """As long, and right: after the deploy, or on a replica that holds more."""
        pick = self._random
        record["replica"] = pick.choice(["pd-0", "pd-1", "pd-2", "unified-0"])
        if record["replica"] == "pd-0":
            record["start"] = _START + _DAY_S / 2 + 600 + pick.random() * (_DAY_S / 2 - 600)
        length = pick.randrange(POOL_TOKENS + 1, 990_000)
        cached = int(length * pick.uniform(0.5, 0.95)) if pick.random() < 0.2 else 0
        self._answered(record, length, cached)

    def _refused(self, record: dict[str, Any]) -> None:
        length = self._random.randrange(1_000_001, 1_400_000)
        record |= {"status": 400, "finish_reason": None, "client_prompt_tokens": length,
                   "error_type": "invalid_request_error",
                   "error_message": "the prompt is too long for this model's context window",
                   "end": record["start"] + 0.02}  # fmt: skip

    def _response_cache(self, record: dict[str, Any]) -> None:
        length = self._random.randrange(200_000, 990_000)
        self._timed(record, length, 0, 0.003)
        record["cache_hit"] = True

    def _truncated(self, record: dict[str, Any]) -> None:
        """Cut to half a million without a word: the client's count and the usage tell it."""
        self._answered(record, 524_288)
        record["client_prompt_tokens"] = self._random.randrange(700_000, 1_000_000)


def write_log(path: Path, log: IncidentLog) -> int:
    """Write the log as JSON lines; returns its size in bytes."""
    with path.open("w", encoding="utf-8") as file:
        for record in log.records():
            file.write(json.dumps({k: v for k, v in record.items() if v is not None}) + "\n")
    return path.stat().st_size


_MAP = ("start=start_time", "end=end_time")


def scan(path: Path, out: Path, *extra: str) -> tuple[dict[str, Any], float, float, float]:
    """Scan with the command line; returns the report, wall and CPU seconds, peak memory in MB."""
    command = [sys.executable, "-m", "kvaudit.cli.main", "scan", str(path), "--out", str(out),
               "--json", "--quiet", *extra]  # fmt: skip
    for pair in _MAP:
        command += ["--map", pair]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode == 2:
        raise SystemExit(done.stderr)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), wall, cpu, after.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=20261130)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gateway.jsonl"
        log = IncidentLog(arguments.seed, rows=arguments.rows)
        size = write_log(path, log)
        print(f"seed {arguments.seed}, {arguments.rows:,} rows, {size / 1e6:.0f} MB")
        print("pool      found  extra  verdict        wall s  CPU s  peak MB")
        for name, extra in (("given", ["--pool-tokens", str(POOL_TOKENS)]), ("not given", [])):
            report, wall, cpu, peak = scan(path, Path(folder) / name.replace(" ", "-"), *extra)
            found = {finding["sink"]["request_id"] for finding in report["findings"]}
            hits = found & log.planted_ids
            print(f"{name:9} {len(hits):5}  {len(found - hits):5}  {report['verdict']:13}"
                  f"  {wall:6.1f} {cpu:6.1f}  {peak:7.0f}")  # fmt: skip


if __name__ == "__main__":
    main()

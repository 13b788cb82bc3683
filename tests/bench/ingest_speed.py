"""How fast logs come in, per format, and how much memory a large mixed pile takes.

`python tests/bench/ingest_speed.py --megabytes 20` prints MB/s of one core for each format, beside
DuckDB and Polars reading the same JSON lines into plain tables (which give no texts, no tenants and
no joins). `--pile-gigabytes 5` ingests one pile of all of them and prints its peak memory.

The logs are the samples, written again and again, each copy with ids, days, tenants and words of
its own: no two copies share a text, so that nothing is folded and nothing packs too well.
"""

import argparse
import gzip
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "logs"
SAMPLES = (
    "litellm-standard-logging.jsonl", "litellm-spendlogs.jsonl", "langfuse-observations.jsonl",
    "helicone-export.jsonl", "cloudflare-aig-logpush-decrypted.jsonl",
    "bedrock-invocation.json.gz", "azure-apim-gatewaylogs-bodies.jsonl",
    "openai-stored-completions.jsonl", "otel-genai-spans.otlp.jsonl",
    "otel-genai-events-v1.36.otlp.jsonl", "generic-proxy-chunks.jsonl", "vllm-server.log",
    "sglang-log-requests.json.log", "sglang-log-requests.text.log", "llama-server.log",
)  # fmt: skip
TENANTS_PER_NAME = 64
_NAMES = ("brightmoor", "ospreyridge", "quillhaven", "tallowbrook")
_ID = r"(?<![0-9a-zA-Z])(?=[0-9a-f]*[a-f])[0-9a-f]{8,64}(?![0-9a-zA-Z])"
_DAY = r"(?<!\d)2026-(?:0[2-9]|1[01])-\d\d(?!\d)"
_EPOCH = r"(?<![\w.])1[78]\d{8}(?:\d{3}|\d{6}|\d{9})?(?!\w)"
_WORD = r"(?<![\w\\\"'./-])(?!false\b)[a-z]{5,}(?=[ ,.;])"
_SLOT = re.compile(f"({_ID})|({_DAY})|({_EPOCH})|({'|'.join(_NAMES)})|({_WORD})")
_SECONDS_A_DAY = 86_400
_DAYS = 27


class Template:
    """One sample, cut once into what stays and what each copy has of its own.

    Within one copy the same id, day, tenant or word of the sample becomes the same other one.
    """

    def __init__(self, text: str) -> None:
        self._pieces: list[str] = []
        self._makers: dict[str, Callable[[random.Random, int], str]] = {}
        self._slots: list[str] = []
        self._words = sorted({m.group(5) for m in _SLOT.finditer(text) if m.group(5)})
        last = 0
        for match in _SLOT.finditer(text):
            self._pieces.append(text[last : match.start()])
            self._slots.append(match.group())
            self._makers[match.group()] = self._maker(match)
            last = match.end()
        self._rest = text[last:] if text.endswith("\n") else text[last:] + "\n"

    def _maker(self, match: re.Match[str]) -> Callable[[random.Random, int], str]:
        text, kind = match.group(), match.lastindex
        if kind == 1:
            return lambda pick, _: f"{pick.getrandbits(4 * len(text)):0{len(text)}x}"
        if kind == 2:
            return lambda _, number: f"{text[:8]}{1 + (int(text[8:]) + number) % _DAYS:02}"
        if kind == 3:
            step = _SECONDS_A_DAY * 10 ** (len(text) - 10)
            return lambda _, number: str(int(text) + number % _DAYS * step)
        if kind == 4:
            return lambda _, number: f"{text}{number % TENANTS_PER_NAME:02}"
        return lambda pick, _: self._words[int(pick.random() * len(self._words))]

    def copy(self, number: int) -> str:
        """Return the sample's copy of that number."""
        pick = random.Random(number)
        own = {slot: make(pick, number) for slot, make in self._makers.items()}
        made = [part for piece, slot in zip(self._pieces, self._slots, strict=True)
                for part in (piece, own[slot])]  # fmt: skip
        return "".join(made) + self._rest


def sample_text(name: str) -> str:
    data = (DATA / name).read_bytes()
    return (gzip.decompress(data) if name.endswith(".gz") else data).decode()


def write_copies(path: Path, name: str, size: int) -> int:
    template = Template(sample_text(name))
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            piece = template.copy(number)
            file.write(piece)
            written += len(piece)
            number += 1
    return path.stat().st_size


_INGEST = """
import sys
from pathlib import Path
from kvaudit.clock import WallClock
from kvaudit.forensics.load import ingest
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.source import find_files
made = ingest(find_files(sys.argv[2:]), IngestOptions(), Path(sys.argv[1]), WallClock())
print(made.rows)
"""
_DUCKDB = """
import sys, duckdb
duckdb.execute("SET threads = 1")
print(duckdb.read_json(sys.argv[2], format="newline_delimited").to_arrow_table().num_rows)
"""
_POLARS = """
import sys, polars
print(len(polars.read_ndjson(sys.argv[2], infer_schema_length=None)))
"""


# Of the process and of any that it started: at most so much was held at once.
_PEAK = """
import resource
print(sum(resource.getrusage(who).ru_maxrss
          for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
"""


def cost(code: str, *arguments: str) -> tuple[str, float, float, float]:
    """Run code in a process of its own; returns its output, wall and CPU seconds, peak MB."""
    script = code + _PEAK
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True,
                          text=True, check=False)  # fmt: skip
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    words = done.stdout.split()
    peak = float(words[-1]) / 1024 if len(words) >= 2 else 0.0
    return words[0] if len(words) >= 2 else "failed", wall, cpu, peak


def speeds(folder: Path, megabytes: int) -> None:
    print(f"{'format':44} {'rows':>8} {'MB':>6} {'MB/s':>7} {'DuckDB':>7} {'Polars':>7} peak MB")
    for name in SAMPLES:
        path = folder / name.removesuffix(".gz")
        size = write_copies(path, name, megabytes * 10**6) / 1e6
        out = folder / "out"
        out.mkdir()
        rows, _, cpu, peak = cost(_INGEST, str(out), str(path))
        others = []
        for code in (_DUCKDB, _POLARS):
            if path.suffix not in (".jsonl", ".json"):
                others.append("-")
                continue
            counted, _, other, _ = cost(code, "", str(path))
            others.append(f"{size / other:.0f}" if counted != "failed" else "fails")
        print(f"{name:44} {rows:>8} {size:6.0f} {size / cpu:7.1f} {others[0]:>7} {others[1]:>7}"
              f" {peak:7.0f}", flush=True)  # fmt: skip
        path.unlink()
        for left in out.iterdir():
            left.unlink()
        out.rmdir()


def pile(folder: Path, gigabytes: float) -> None:
    share = int(gigabytes * 1e9 / len(SAMPLES))
    paths = [folder / name.removesuffix(".gz") for name in SAMPLES]
    size = sum(write_copies(path, name, share) for path, name in zip(paths, SAMPLES, strict=True))
    out = folder / "out"
    out.mkdir()
    rows, wall, cpu, peak = cost(_INGEST, str(out), *map(str, paths))
    print(f"{size / 1e9:.2f} GB, {rows} rows: {wall:.0f} s wall, {cpu:.0f} s CPU,"
          f" {size / 1e6 / cpu:.1f} MB per CPU second, peak {peak:.0f} MB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--pile-gigabytes", type=float)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.pile_gigabytes:
            pile(Path(folder), arguments.pile_gigabytes)
        else:
            speeds(Path(folder), arguments.megabytes)


if __name__ == "__main__":
    main()

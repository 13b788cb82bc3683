"""Train the character model of the log scan and write it into the package.

    python tests/bench/train_char_model.py

The text is public and lies on every machine with Python: documentation strings and documents of the
installed packages, and translations (`.mo`) of programs. Nothing of any scanned log is in it.
"""

import argparse
import ast
import gettext
import gzip
import hashlib
import json
import math
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from kvaudit.detect.scored.char_model import FILE_NAME, ORDER, SCRIPTS, VERSION, script_of, spelled

ENGLISH_CHARS = 10_000_000  # of documents; then come translations
LATIN_CHARS = 12_000_000
CATALOGUE_CHARS = 12_000  # of one file, so that many languages have a share
OTHER_CHARS = 700_000
FILE_CHARS = 60_000
COUNT_MIN = {1: 1, 2: 2, 3: 4, 4: 9, 5: 16}
OTHER_COUNT_MIN = {1: 1, 2: 3, 3: 8, 4: 25, 5: 60}
TEXT_SUFFIXES = {".md", ".rst", ".txt", ".pod"}
TARGET = Path(__file__).parents[2] / "kvaudit" / "detect" / "scored" / FILE_NAME


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=TARGET)
    chosen = parser.parse_args()
    texts = collected()
    model: dict[str, object] = {"version": VERSION, "order": ORDER, "scripts": {}}
    scripts: dict[str, object] = {}
    for script in SCRIPTS:
        pieces = texts[script]
        least = COUNT_MIN if script == "latin" else OTHER_COUNT_MIN
        scripts[script] = trained(pieces, least)
        size = sum(map(len, pieces))
        print(f"{script}: {size:,} characters, {scripts_size(scripts[script]):,} n-grams")
    model["scripts"] = scripts
    data = json.dumps(model, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    packed = gzip.compress(data, 9, mtime=0)
    chosen.output.write_bytes(packed)
    print(f"{chosen.output.name}: {len(packed):,} bytes, {hashlib.sha256(packed).hexdigest()[:16]}")


def scripts_size(found: object) -> int:
    assert isinstance(found, dict)
    return sum(len(held) for held in found["bits"].values())


def collected() -> dict[str, list[str]]:
    """Return texts by script, a limited amount of each, in a fixed order."""
    made: dict[str, list[str]] = defaultdict(list)
    sizes: Counter[str] = Counter()
    seen: set[str] = set()
    for text, is_translated in sources(lambda: sizes["latin"] >= ENGLISH_CHARS):
        if not is_translated and sizes["latin"] >= ENGLISH_CHARS:
            continue
        by_script: dict[str, list[str]] = defaultdict(list)
        for line in text.splitlines():
            line = line.strip()
            if len(line) < 20 or line in seen:
                continue
            seen.add(line)
            by_script[script_of(line)].append(line)
        for script, lines in by_script.items():
            latin = LATIN_CHARS if is_translated else ENGLISH_CHARS
            limit = latin if script == "latin" else OTHER_CHARS
            if sizes[script] < limit:
                piece = spelled(" ".join(lines))
                made[script].append(piece)
                sizes[script] += len(piece)
    return made


def sources(is_enough: Callable[[], bool]) -> Iterator[tuple[str, bool]]:
    """Yield texts, and whether each is a program's translation."""
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    roots += [Path(path) for path in sys.path if "site-packages" in path]
    roots += [Path("/usr/share/doc"), Path("/usr/share/perl"), Path("/usr/share/vim")]
    held = [documents(root) for root in dict.fromkeys(roots)]
    while held and not is_enough():  # in turn, so that no root fills the share of all
        for one in list(held):
            text = next(one, None)
            if text is None:
                held.remove(one)
            else:
                yield text, False
    for path in sorted(Path("/usr/share/locale").glob("*/LC_MESSAGES/*.mo")):
        for text in catalogue(path):
            yield text, True


def documents(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if path.suffix == ".py":
            yield from docstrings(path)
        elif path.suffix in TEXT_SUFFIXES and path.is_file():
            yield path.read_text("utf-8", "replace")[:FILE_CHARS]


def catalogue(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            held = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    except (OSError, LookupError, ValueError, AttributeError):
        return
    yield "\n".join(sorted(str(value) for value in held.values()))[:CATALOGUE_CHARS]


def docstrings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            found = ast.get_docstring(node)
            if found:
                yield found


def trained(pieces: Iterable[str], least: dict[int, int]) -> dict[str, object]:
    """Return bits of kept n-grams and back-off bits of their contexts (Witten-Bell, Katz form)."""
    counts: list[Counter[str]] = [Counter() for _ in range(ORDER + 1)]
    for text in pieces:
        for size in range(1, ORDER + 1):
            counts[size].update(text[at : at + size] for at in range(len(text) - size + 1))
    total = sum(counts[1].values())
    if not total:
        return {"unknown": 12.0, "bits": {}, "backoff": {}}
    kinds = len(counts[1])
    prob: dict[str, float] = {c: n / (total + kinds) for c, n in counts[1].items()}
    backoff: dict[str, float] = {}
    for size in range(2, ORDER + 1):
        followers: dict[str, Counter[str]] = defaultdict(Counter)
        for gram, count in counts[size].items():
            if count >= least[size]:
                followers[gram[:-1]][gram[-1]] = count
        for context, after in followers.items():
            whole = counts[size - 1][context]
            types = len(after) + 1
            kept = 0.0
            for char, count in after.items():
                prob[context + char] = count / (whole + types)
                kept += prob[context + char]
            lower = sum(lower_probability(prob, backoff, (context + char)[1:]) for char in after)
            backoff[context] = max(1e-6, 1 - kept) / max(1e-6, 1 - lower)
    bits: dict[str, dict[str, str]] = {}
    grouped: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for gram, p in prob.items():
        grouped[gram[:-1]].append((gram[-1], min(89, round(-math.log2(p) * 5))))
    for context, items in grouped.items():
        items.sort()
        # One string of characters and one of their bits: chr(33 + 5 x bits).
        bits[context] = {
            "c": "".join(c for c, _ in items),
            "b": "".join(chr(33 + b) for _, b in items),
        }
    return {
        "unknown": round(math.log2(total + kinds) - 2, 2),
        "bits": {context: held["c"] + held["b"] for context, held in bits.items()},
        "backoff": {
            c: round(-math.log2(w), 1) for c, w in backoff.items() if abs(math.log2(w)) > 0.1
        },
    }


def lower_probability(prob: dict[str, float], backoff: dict[str, float], gram: str) -> float:
    weight = 1.0
    while len(gram) > 1 and gram not in prob:
        weight *= backoff.get(gram[:-1], 1.0)
        gram = gram[1:]
    return weight * prob.get(gram, 1e-6)


if __name__ == "__main__":
    main()

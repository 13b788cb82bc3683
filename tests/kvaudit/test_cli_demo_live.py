"""The demo, really run: what the README shows is what it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DOOR = "from kvaudit.cli.main import main; main()"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Run the command as a user does; returns its folder and what it printed."""
    place = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-c", DOOR, "demo", "--out", "demo"],
        cwd=place, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    return place, done


def test_the_leak_is_shown_and_the_fix_is_clean(
    shown: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    place, done = shown
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (place / "demo").iterdir()} == {"red", "green"}
    for half in ("red", "green"):
        held = {path.name for path in (place / "demo" / half).iterdir()}
        assert {"journal.jsonl", "run.duckdb", "report.json", "report.html"} <= held


def test_the_readme_shows_what_is_printed(
    shown: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(
        r"<!-- demo -->\n```text\n\$ kvaudit demo --out demo\n(.*?)\n```", text, re.DOTALL
    )
    assert block is not None, "the README shows the demo"
    _, done = shown
    assert block[1].strip() == done.stdout.strip()

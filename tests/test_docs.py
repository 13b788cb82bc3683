"""The docs say what the code does: commands, flags, keys, links, numbers."""

import importlib
import math
import re
import runpy
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from engine.faults import FAULTS, FaultSpec
from kvaudit.cli.app import build_app
from kvaudit.config import AuditConfig
from kvaudit.findings import Verdict
from kvaudit.forensics.readers import FORMATS as LOG_FORMATS
from probes.catalog import SCENARIOS
from probes.catalog.blocks import BLOCKS
from reports.formats import FORMATS as REPORT_FORMATS
from reports.json_report import json_schema

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md"])
PAGE_IDS = [page.relative_to(ROOT).as_posix() for page in PAGES]
REFERENCE = DOCS / "reference"
EVERYWHERE = {"--help", "--version"}


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines that are neither code, table, heading nor comment."""
    in_code = False
    for number, line in enumerate(read(page).splitlines(), start=1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and not re.match(r"    |\||#|<!--", line):
            yield number, line


def code(page: Path) -> Iterator[str]:
    """Lines of code blocks, fenced or indented."""
    in_code = False
    for line in read(page).splitlines():
        if line.startswith("```"):
            in_code = not in_code
        elif in_code or line.startswith("    "):
            yield line.strip()


@cache
def commands() -> dict[str, Any]:
    """The registered commands by name, without hidden ones; groups are opened."""
    return dict(_opened("", typer.main.get_command(build_app())))


def _opened(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _opened(f"{prefix}{name} ", command)
        else:
            yield f"{prefix}{name}", command


def flags(command: Any) -> set[str]:
    """Every long flag of one command, the negative forms too."""
    return {
        flag
        for parameter in command.params
        for flag in [*parameter.opts, *parameter.secondary_opts]
        if flag.startswith("--")
    }


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", read(page), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", read(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{page.name} links to `{target}`"
        if anchor:
            assert anchor in anchors(goal), f"{page.name} links to `{target}`"


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_a_line_holds_one_sentence(page: Path) -> None:
    # In list items and tables several short ones may stand together.
    double = [
        f"{page.name}:{number}"
        for number, line in prose(page)
        if not re.match(r"\s*(?:[-*]|\d+\.)\s", line) and re.search(r"[a-z)`][.!?] [A-Z`]", line)
    ]
    assert not double


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", read(page))
        waiting += [(page.parent / target).resolve() for target in targets if "://" not in target]
    lost = [name for page, name in zip(PAGES, PAGE_IDS, strict=True) if page not in reached]
    assert not lost


def test_every_command_and_flag_is_documented_and_nothing_else() -> None:
    sections = re.split(r"^## `kvaudit (.+)`$", read(REFERENCE / "commands.md"), flags=re.MULTILINE)
    shared, documented = sections[0], dict(zip(sections[1::2], sections[2::2], strict=True))
    assert set(documented) == set(commands())
    for name, command in commands().items():
        text = documented[name] + shared
        missing = {flag for flag in flags(command) - EVERYWHERE if f"`{flag}" not in text}
        assert not missing, f"`kvaudit {name}` has {sorted(missing)}"
        promised = set(re.findall(r"^\| `(--[\w-]+)", documented[name], re.MULTILINE))
        assert promised <= flags(command), f"`kvaudit {name}` lacks {promised - flags(command)}"


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_every_command_line_that_is_shown_exists(page: Path) -> None:
    for line in code(page):
        shown = re.match(r"(?:\$ )?(kvaudit [^|<>&#]*)", line)
        if shown is None or "…" in line:
            continue
        words = shlex.split(shown[1].replace("\\", ""))[1:]
        if not words or words[0].startswith("-"):
            continue
        name = next(
            (" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in commands()), None
        )
        assert name is not None, f"there is no `kvaudit {words[0]}`: {line}"
        used = {word.split("=")[0] for word in words if word.startswith("--")}
        assert used <= flags(commands()[name]) | EVERYWHERE, line


def test_every_configuration_key_is_documented_with_its_default() -> None:
    text = read(REFERENCE / "configuration.md")
    rows = {
        name: cells[1]
        for line in text.splitlines()
        if line.startswith("| `")
        and len(cells := [c.strip() for c in line.strip("|").split("|")]) == 3
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    for item in fields(AuditConfig):
        assert item.name in rows, f"`{item.name}` has no row"
        shown = rows[item.name]
        if item.default in (None, ()):
            assert "`" not in shown or "_device" in item.name, item.name
        else:
            assert shown.strip("`") == str(item.default), item.name


def test_every_key_of_the_json_is_documented() -> None:
    schema = json_schema()
    parts = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]
    text = read(REFERENCE / "json.md")
    missing = {key for part in parts for key in part["properties"] if f"`{key}`" not in text}
    assert not missing


def test_every_view_is_documented() -> None:
    store = ROOT / "kvaudit" / "store"
    text = read(REFERENCE / "run-folder.md")
    macros = {"redact", "reveal"}
    views = {path.stem for path in (store / "views").glob("*.sql")} - macros
    assert views
    assert views == set(re.findall(r"^\| `([\w-]+)` \| (?:a|an|the|evidence) ", text, re.MULTILINE))


def test_every_question_is_documented_in_its_own_words() -> None:
    questions = {
        path.stem: path.read_text(encoding="utf-8").splitlines()[0].removeprefix("-- ")
        for path in (ROOT / "kvaudit" / "store" / "questions").glob("*.sql")
    }
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", read(REFERENCE / "questions.md"), re.MULTILINE)
    assert dict(rows) == questions


def test_every_log_format_and_no_other_is_documented() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", read(REFERENCE / "log-formats.md"), re.MULTILINE)
    assert set(rows) == set(LOG_FORMATS)


def test_every_report_format_is_documented() -> None:
    text = read(REFERENCE / "commands.md").split("## `kvaudit report`")[1].split("\n## ")[0]
    assert not {name for name in REPORT_FORMATS if f"`{name}`" not in text}


def test_the_exit_statuses_are_those_of_the_verdicts() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (\d) \|$", read(DOCS / "concepts" / "verdicts.md"), re.MULTILINE
    )
    assert {name: int(status) for name, status in rows} == {
        verdict.value: verdict.exit_status for verdict in Verdict
    }


def test_the_table_of_requests_needed_is_right() -> None:
    text = (
        read(DOCS / "concepts" / "chance-and-bounds.md")
        .split("<!-- table: requests needed -->")[1]
        .split("\n\n")[0]
    )
    rows = re.findall(r"^\| (0\.\d+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for rate, *counts in rows:
        for error, count in zip((0.05, 0.01, 0.001), counts, strict=True):
            needed = math.ceil(math.log(error) / math.log1p(-float(rate)))
            assert int(count.replace(",", "")) == needed


@pytest.mark.parametrize(
    ("page", "module", "constant", "sentence"),
    [
        ("KVA101", "kvaudit.canary", "PARTIAL_WORDS", "at least {} of the words in a row"),
        ("KVA101", "kvaudit.canary", "WORDS", "is {} words and a code"),
        ("KVA101", "kvaudit.canary", "CODE_LENGTH", "a code of {} characters"),
        ("KVA201", "kvaudit.detect.runs", "GRAM", "at least {} folded characters"),
        ("KVA201", "kvaudit.detect.runs", "RUN_BITS_MIN", "under {:g} bits"),
        ("KVA201", "kvaudit.detect.runs", "VALUE_BITS", "{:g} for a character of a value"),
        ("KVA301", "kvaudit.detect.accounting", "LONG_PROMPT_TOKENS", "at least {} tokens"),
        ("KVA301", "kvaudit.detect.accounting", "PLACEHOLDER_TOKENS", "is {} or less"),
        ("KVA401", "kvaudit.detect.recall", "RECALL_MIN", "fewer than {:.0%} of them"),
    ],
)
def test_a_threshold_in_the_docs_is_the_one_in_the_code(
    page: str, module: str, constant: str, sentence: str
) -> None:
    value = getattr(importlib.import_module(module), constant)
    text = read(REFERENCE / "rules" / f"{page}.md").replace(" %", "%")
    assert sentence.format(value) in text


def test_the_blocks_of_each_profile_are_documented() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (\d+) \|", read(DOCS / "guide" / "first-audit.md"), re.MULTILINE
    )
    assert {name: int(blocks) for name, blocks in rows} == BLOCKS


def test_every_scenario_is_documented() -> None:
    text = read(REFERENCE / "commands.md").split("## `kvaudit audit`")[1].split("\n## ")[0]
    assert not {name for name in SCENARIOS if f"`{name}` (" not in text}


def test_every_error_that_is_documented_exists() -> None:
    errors = importlib.import_module("kvaudit.errors")
    for page in PAGES:
        for name in re.findall(r"`(\w+Error)`", read(page)):
            assert hasattr(errors, name), f"{page.name} names `{name}`"


def test_the_operating_curve_is_what_its_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "tests" / "bench" / "operating_curve.py"
    runpy.run_path(str(path), run_name="__main__")
    page = read(DOCS / "concepts" / "chance-and-bounds.md")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 0")]
    assert len(rows) == 12
    assert not [row for row in rows if row not in page]


@pytest.mark.parametrize("spec", FAULTS.values(), ids=list(FAULTS))
def test_every_fault_is_described_as_the_catalogue_has_it(spec: FaultSpec) -> None:
    page = read(REFERENCE / "faults.md")
    section = page.split(f"### `{spec.name}`\n", 1)[1].split("\n##", 1)[0]
    assert section.strip().startswith(spec.id)
    (stopped_by,) = re.findall(r"\| stopped by \| (.*) \|", section)
    assert set(re.findall(r"`([\w-]+)`", stopped_by.split("; not by")[0])) == set(spec.fixed_by)
    (breaks,) = re.findall(r"\| breaks \| (.*) \|", section)
    assert breaks.split(", ") == re.findall(r"\bI\d\b", spec.invariant)

"""The house tests itself: what exists is documented, files stay small, nothing odd is tracked."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from engine.faults import FAULTS
from kvaudit.rules import RULES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PACKAGES = ("kvaudit", "engine", "probes", "reports")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}
TOP_LEVEL_FOLDERS = {*PACKAGES, "tests", "docs", ".ci", ".github"}

# Spelled in two halves, so that this file does not hold what it forbids.
FORBIDDEN_TEXT = {
    "a path of somebody's machine": re.compile(
        r"(?<![\w.~-])/(?:wo" + r"rk|ho" + r"me/\w+|Us" + r"ers/\w+|ro" + r"ot)/"
    ),
    "a path next to the checkout": re.compile(r"\.\./sh" + r"ared"),
    "a package host": re.compile(r"pypi\." + r"org|python" + r"hosted|extra-index" + r"-url"),
    "a key": re.compile(r"\bsk-[A-Za-z0-9]{20,}|\bAK" + r"IA[0-9A-Z]{16}\b"),
}


@cache
def tracked() -> tuple[Path, ...]:
    """Every file that belongs to the project: what git knows, or, without git, what lies here."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout.split("\0")  # fmt: skip
        paths = [ROOT / name for name in listed if name]
    else:
        paths = [
            path for folder in (*PACKAGES, "tests", "docs") for path in (ROOT / folder).rglob("*")
        ]
    return tuple(
        sorted(path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    )


def python_files(*folders: str) -> Iterator[Path]:
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders:
            yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_walk_finds_the_project() -> None:
    names = {name_of(path) for path in tracked()}
    assert {"kvaudit/rules.py", "tests/test_tidy.py", "pyproject.toml"} <= names


@pytest.mark.parametrize("rule_id", sorted(RULES))
def test_every_rule_has_its_page(rule_id: str) -> None:
    rule = RULES[rule_id]
    page = DOCS / "reference" / "rules" / f"{rule_id}.md"
    assert page.is_file(), f"write {name_of(page)}"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {rule_id} {rule.name}\n"), "the title is the id and the name"
    for heading in ("## What it sees", "## How it decides", "## What can fool it", "## Sources"):
        assert f"\n{heading}\n" in text, f"{name_of(page)} lacks `{heading}`"
    for word in (rule.kind.value, rule.severity.value):
        assert f"`{word}`" in text, f"{name_of(page)} does not say `{word}`"
    says_unbuilt = "Not built in this version" in text
    assert says_unbuilt != rule.is_built, f"{name_of(page)} and `is_built` disagree"


def test_every_rule_page_has_its_rule() -> None:
    pages = {path.stem for path in (DOCS / "reference" / "rules").glob("KVA*.md")}
    # KVA7xx and KVA9xx are families of ids whose members live beside their detectors.
    strays = {page for page in pages - set(RULES) if not re.fullmatch(r"KVA[79]\d\d", page)}
    assert not strays, f"pages without a rule: {sorted(strays)}"


def test_the_rule_index_lists_every_rule() -> None:
    index = (DOCS / "reference" / "rules" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(KVA\d+)\].* \| (yes|no) \|", index, re.MULTILINE)
    assert {rule_id: built == "yes" for rule_id, built in rows} == {
        rule_id: rule.is_built for rule_id, rule in RULES.items()
    }


def test_every_fault_has_its_entry_and_no_entry_is_without_a_fault() -> None:
    text = (DOCS / "reference" / "faults.md").read_text(encoding="utf-8")
    entries = set(re.findall(r"^### `([^`]+)`$", text, re.MULTILINE))
    assert entries == set(FAULTS)


def test_no_function_is_too_long() -> None:
    too_long = [
        f"{name_of(path)}:{node.lineno} {node.name} has {length} lines"
        for path in python_files(*PACKAGES, "tests")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def test_no_file_is_too_long() -> None:
    too_long = [
        f"{name_of(path)} has {length} lines"
        for path in python_files(*PACKAGES, "tests")
        if (length := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def test_no_module_has_a_name_that_says_nothing() -> None:
    banned = [
        name_of(path)
        for path in python_files(*PACKAGES, "tests")
        if BANNED_MODULES & set(path.stem.split("_")) or path.parent.name in BANNED_MODULES
    ]
    assert not banned


def test_tests_hold_no_package() -> None:
    # With one, `tests/engine` would hide the real `engine`, even in importlib mode.
    assert not [name_of(path) for path in (ROOT / "tests").rglob("__init__.py")]


def test_nothing_is_imported_for_hints_alone() -> None:
    word = "TYPE_" + "CHECKING"
    assert not [
        name_of(path)
        for path in python_files(*PACKAGES, "tests")
        if word in path.read_text(encoding="utf-8")
    ]


def test_sql_lives_in_sql_files() -> None:
    statement = re.compile(
        r"^\s*(?:SELECT\s.+\sFROM|INSERT INTO|CREATE TABLE \w+ ?\(|WITH \w+ AS \()\s", re.DOTALL
    )
    inline = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and statement.match(node.value)
    ]
    assert not inline, f"move to a .sql file: {inline}"


def test_the_packages_stand_beside_each_other_and_nothing_else_does() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    assert folders <= TOP_LEVEL_FOLDERS, folders - TOP_LEVEL_FOLDERS
    code = [path.name for path in tracked() if path.parent == ROOT and path.suffix == ".py"]
    assert not code, "beside the packages stand only text files"


def test_nothing_tracked_names_a_machine_a_host_or_a_key() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            for what, pattern in FORBIDDEN_TEXT.items():
                # Redaction is tested with made-up keys.
                is_made_up = what == "a key" and name_of(path).startswith("tests/")
                if pattern.search(line) and not is_made_up:
                    found.append(f"{name_of(path)}:{number} holds {what}")
    assert not found, "\n".join(found[:20])


def test_no_run_and_no_large_file_is_tracked() -> None:
    large = [name_of(path) for path in tracked() if path.stat().st_size > 1_000_000]
    assert not large
    runs = [name_of(path) for path in tracked() if path.name in {"journal.jsonl", "run.duckdb"}]
    assert not [name for name in runs if not name.startswith(("tests/data/", "tests/golden/"))]


def test_every_room_that_judges_is_closed_to_engine_and_probes() -> None:
    # import-linter refuses names of modules that do not exist yet, so the list grows with them.
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    contract = next(
        contract
        for contract in settings["importlinter"]["contracts"]
        if contract["name"] == "Who makes records does not judge them"
    )
    rooms = ("audit", "verify", "scan", "judge", "detect", "forensics", "store")
    built = {
        f"kvaudit.{room}"
        for room in rooms
        if (ROOT / "kvaudit" / room).is_dir() or (ROOT / "kvaudit" / f"{room}.py").is_file()
    }
    assert built == set(contract["forbidden_modules"])


def test_imports_only_go_down() -> None:
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    status = lint_imports(
        config_filename=str(ROOT / "pyproject.toml"), no_cache=True, is_debug_mode=False
    )
    assert status == EXIT_STATUS_SUCCESS, "run `lint-imports` to see which arrow points up"


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = {
        re.split(r"[<>=!~\[; ]", requirement)[0].lower().replace("_", "-")
        for requirement in [*project["dependencies"], *extras["engine"], *extras["dev"]]
    }
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    assert wanted <= {pin.split("==")[0] for pin in pins}
    assert "torch==2.13.0" in pins, "no local suffix, so that CPU and CUDA builds both fit"


def test_the_makefile_has_its_five_targets() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", text, re.MULTILINE))
    assert targets == {"demo", "test", "lint", "bench", "clean"}


def test_changes_are_noted_under_unreleased() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"

"""The plugin as a stranger's project meets it: a process of its own, one test file."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

IS_INSTALLED = any(
    point.value == "kvaudit.pytest_plugin"
    for point in importlib.metadata.entry_points(group="pytest11")
)
LOADED = () if IS_INSTALLED else ("-p", "kvaudit.pytest_plugin")
HEAVY = ("torch", "numba", "polars", "duckdb", "scipy", "httpx", "typer", "rich", "datasketch")
THEIRS = """
import pytest

def test_no_tenant_reads_another(kvaudit_audit):
    assert kvaudit_audit.verdict == "clean", kvaudit_audit.reasons

def test_every_check_passes(kvaudit_checks):
    assert not [check.name for check in kvaudit_checks.values() if check.state == "failed"]

def test_the_server_says_what_it_is(kvaudit_target):
    assert kvaudit_target.facts().context_tokens

@pytest.mark.kvaudit
def test_of_ones_own():
    raise AssertionError("runs only with a server")

def test_unrelated():
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    return tmp_path


def in_project(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", *LOADED, *arguments],
        cwd=project, capture_output=True, text=True, timeout=300, check=False,
        env=os.environ | {"PYTHONPATH": root, "COLUMNS": "200"},
    )  # fmt: skip


def test_without_the_option_its_tests_are_skipped_with_the_reason(project: Path) -> None:
    done = in_project(project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 4 skipped" in done.stdout
    assert done.stdout.count("needs a server: name one with --kvaudit-base-url URL") >= 1


def test_without_the_option_nothing_heavy_is_imported(project: Path) -> None:
    (project / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        f"    print('HEAVY:', sorted(set(sys.modules) & set({HEAVY!r})))\n"
        "    print('OURS:', sorted(name for name in sys.modules if name.startswith('kvaudit')))\n"
    )
    done = in_project(project, "-s")
    assert "HEAVY: []" in done.stdout, done.stdout
    assert "OURS: ['kvaudit', 'kvaudit.pytest_plugin']" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kvaudit-base-url", "http://127.0.0.1:9/"], "127.0.0.1:9"),
        (["--kvaudit-base-url", "http://192.0.2.1"], "`http://192.0.2.1` is not this machine"),
        (
            ["--kvaudit-base-url", "http://127.0.0.1:9", "--kvaudit-profile", "quik"],
            "there is no profile `quik`",
        ),
    ],
)
def test_what_is_wrong_is_one_readable_failure(
    project: Path, arguments: list[str], message: str
) -> None:
    done = in_project(project, *arguments, "-k", "no_tenant")
    assert done.returncode == 1
    assert message in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_seed_that_is_no_number_is_a_usage_error(project: Path) -> None:
    done = in_project(
        project, "--kvaudit-base-url", "http://127.0.0.1:9", "--kvaudit-seed", "x", "-k", "tenant"
    )
    assert "--kvaudit-seed wants a whole number" in done.stdout + done.stderr

"""What a user gets: a wheel that is whole, and a base install that works without torch."""

import json
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kvaudit", "engine", "probes", "reports")
TORCH_FREE_ENGINE = ("engine", "engine.config", "engine.faults")
HEAVY = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "starlette", "uvicorn")

pytestmark = pytest.mark.slow

IMPORT_ALL = """
import importlib, importlib.util, json, pkgutil
names = []
for package in ("kvaudit", "probes", "reports"):
    names.append(package)
    path = importlib.import_module(package).__path__
    names += [found.name for found in pkgutil.walk_packages(path, package + ".")]
for name in names:
    # pytest loads its plugin, and pytest is no base dependency; these two run the engine itself,
    # and `kvaudit sim` imports them only then.
    if name not in ("kvaudit.pytest_plugin", "kvaudit.cli.sim_run", "kvaudit.cli.sim_explore"):
        importlib.import_module(name)
for name in TORCH_FREE:
    if importlib.util.find_spec(name):
        importlib.import_module(name)
        names.append(name)
import kvaudit
print(json.dumps({"names": names, "at": kvaudit.__file__}))
"""


def run(*command: str | Path, cwd: Path, timeout: int = 600) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel and its base dependencies; returns its bin."""
    home = tmp_path_factory.mktemp("base")
    venv.create(home / "venv", with_pip=True)
    bin_folder = home / "venv" / "bin"
    pip = (bin_folder / "python", "-m", "pip")
    built = run(*pip, "wheel", "--quiet", "--no-deps", "-w", home / "dist", ROOT, cwd=home)
    assert built.returncode == 0, built.stderr
    (wheel,) = (home / "dist").glob("kvaudit-*.whl")
    installed = run(
        *pip, "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=home
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    return bin_folder


def test_the_wheel_holds_every_file_of_the_packages(base: Path) -> None:
    (wheel,) = (base.parent.parent / "dist").glob("kvaudit-*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.split("/")[0] in PACKAGES}
    here = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == here


def test_the_base_install_draws_in_no_part_of_the_engine(base: Path) -> None:
    listed = json.loads(run(base / "python", "-m", "pip", "list", "--format=json", cwd=base).stdout)
    names = {item["name"].lower() for item in listed}
    assert "kvaudit" in names
    assert not names & set(HEAVY)


def test_every_room_but_the_engine_imports_without_torch(base: Path) -> None:
    script = IMPORT_ALL.replace("TORCH_FREE", repr(TORCH_FREE_ENGINE))
    done = run(base / "python", "-I", "-W", "error", "-c", script, cwd=base)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert not seen["at"].startswith(str(ROOT)), "the checkout was imported, not the wheel"
    assert "kvaudit.rules" in seen["names"]


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["audit", "--help"], ["rules"], ["faults"], ["query", "--help"]],
    ids=" ".join,
)
def test_the_command_works_without_torch(base: Path, tmp_path: Path, arguments: list[str]) -> None:
    done = run(base / "kvaudit", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_catalogues_are_json_without_torch(base: Path, tmp_path: Path) -> None:
    done = run(base / "kvaudit", "rules", "--json", cwd=tmp_path)
    items = json.loads(done.stdout)
    assert items["schema"] == 1
    assert {item["id"] for item in items["items"]} >= {"KVA101", "KVA401"}


@pytest.mark.parametrize(
    "arguments", [["audit", "--yes"], ["demo"], ["sim", "--seeds", "1"]], ids=" ".join
)
def test_a_command_that_needs_the_engine_says_so(
    base: Path, tmp_path: Path, arguments: list[str]
) -> None:
    done = run(base / "kvaudit", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert "from your clone or wheel: pip install -c constraints.txt '.[engine]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("journal.jsonl")), "nothing ran, so no run is left behind"


def test_a_package_of_the_same_name_in_the_current_folder_is_not_taken(
    base: Path, tmp_path: Path
) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "__init__.py").write_text("raise SystemExit('the wrong reports')")
    done = run(base / "kvaudit", "rules", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_another_distribution_that_hides_a_package_is_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "probes").mkdir()
    (tmp_path / "probes" / "__init__.py").touch()
    done = subprocess.run(
        [str(base / "kvaudit"), "rules"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "probes" in done.stderr
    assert "Traceback" not in done.stderr

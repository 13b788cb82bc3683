"""What `--output` names: replaced, written through or refused, and never a run's own evidence."""

import os
import resource
import stat
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from kvaudit.cli.main import run
from kvaudit.cli.saving import saving
from kvaudit.errors import StorageError
from kvaudit.store.purge import OWN_NAMES

COMMANDS = (
    ("report", "--format", "json"),
    ("query", "SELECT request_id FROM requests", "--format", "json"),
)


def save(leaky: Path, command: tuple[str, ...], output: Path | str) -> int:
    return run([command[0], str(leaky), *command[1:], "--output", str(output), "-q"])


class Drain:
    """Reads a pipe to its end, or only its first `count` bytes, on a thread of its own."""

    def __init__(self, path: Path, count: int = -1) -> None:
        self.content = b""
        self._path, self._count = path, count
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._path.open("rb", buffering=0) as file:
            self.content = file.read(self._count) or b""

    def join(self) -> bytes:
        self._thread.join(timeout=20)
        assert not self._thread.is_alive(), "nothing was ever written to the pipe"
        return self.content


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_is_written_to_and_stays_a_pipe(
    leaky: Path, pipe: Path, command: tuple[str, ...], is_linked: bool, tmp_path: Path
) -> None:
    named = tmp_path / "link"
    named.symlink_to(pipe)
    output = named if is_linked else pipe
    # Held open, so that neither side waits for ever where the pipe is replaced.
    holder = os.open(pipe, os.O_RDWR)
    try:
        drain = Drain(pipe)
        assert save(leaky, command, output) == 0
        assert stat.S_ISFIFO(pipe.stat().st_mode), "a file took the place of the pipe"
    finally:
        os.close(holder)
    assert named.is_symlink()
    assert save(leaky, command, tmp_path / "plain") == 0
    assert drain.join() == (tmp_path / "plain").read_bytes()
    assert not list(tmp_path.glob(".*.part"))


def test_parquet_is_written_to_a_pipe(leaky: Path, pipe: Path, tmp_path: Path) -> None:
    holder = os.open(pipe, os.O_RDWR)
    drain = Drain(pipe)
    status = save(leaky, ("query", "requests", "--format", "parquet"), pipe)
    os.close(holder)
    assert status == 0
    (tmp_path / "read.parquet").write_bytes(drain.join())
    assert pq.read_table(tmp_path / "read.parquet").num_rows > 0


def test_a_pipe_whose_reader_went_away_is_told(pipe: Path) -> None:
    drain = Drain(pipe, 1)
    with pytest.raises(StorageError, match="can't write") as caught, saving(pipe) as half:
        half.write_bytes(b"x" * 1_000_000)  # more than a pipe holds
    drain.join()
    assert caught.value.exit_status == 3
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_the_disk_refuses_is_told_and_the_old_one_stays(tmp_path: Path) -> None:
    output = tmp_path / "x.html"
    output.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(StorageError, match="can't write") as caught, saving(output) as half:
            half.write_bytes(b"x" * 1_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_status == 3
    assert output.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_symbolic_link_stays_and_its_file_gets_the_content(
    leaky: Path, tmp_path: Path, command: tuple[str, ...], is_there: bool
) -> None:
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "file.json", tmp_path / "link.json"
    link.symlink_to(file)
    if is_there:
        file.write_text("old")
    assert save(leaky, command, link) == 0
    assert link.is_symlink()
    assert file.read_bytes().startswith(b"{")
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_place_in_a_run_folder_is_refused_and_the_run_stays_as_it_was(
    leaky: Path,
    tmp_path: Path,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "journal.jsonl").write_text("{}\n")
    link = tmp_path / "link.json"
    link.symlink_to(leaky / "journal.jsonl")
    before = {path.name: path.read_bytes() for path in leaky.iterdir() if path.is_file()}
    names = sorted({*OWN_NAMES, "report.json", "report.html", "new.json"})
    places = [
        *(leaky / name for name in names), leaky / "tmp" / "x.json", other / "x.json",
        other / ".." / "other" / "journal.jsonl", link,
    ]  # fmt: skip
    for output in places:
        assert save(leaky, command, output) == 2, output
        message, hint = capsys.readouterr().err.split("hint:")
        assert "run folder" in message
        assert "outside" in hint
    monkeypatch.chdir(leaky)
    assert save(Path(), command, "report.md") == 2
    after = {path.name: path.read_bytes() for path in leaky.iterdir() if path.is_file()}
    assert after == before
    assert (other / "journal.jsonl").read_text() == "{}\n"


def test_a_refused_place_is_no_reveal(leaky: Path) -> None:
    words = ["report", str(leaky), "--format", "json", "--reveal", "--output"]
    assert run([*words, str(leaky / "x.json")]) == 2
    assert not (leaky / "reveals.jsonl").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("output", ["", ".", "..", "folder"])
def test_an_output_that_is_no_file_exits_2_with_a_hint(
    leaky: Path,
    tmp_path: Path,
    command: tuple[str, ...],
    output: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert save(leaky, command, output) == 2
    err = capsys.readouterr().err
    assert "`--output` names" in err
    assert "name a file" in err.split("hint:")[1]
    assert "Traceback" not in err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_dash_is_stdout(
    leaky: Path,
    tmp_path: Path,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert save(leaky, command, "-") == 0
    assert capsys.readouterr().out.startswith("{")
    assert not (tmp_path / "-").exists()


def test_an_ending_that_names_no_format_is_refused(
    leaky: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "x.foo"
    assert run(["report", str(leaky), "--output", str(output)]) == 2
    message, hint = capsys.readouterr().err.split("hint:")
    assert "`.foo`" in message
    for name in ("text", "html", "json", "markdown", "sarif", "junit", "csv", "parquet"):
        assert name in hint
    assert not output.exists()
    assert run(["report", str(leaky), "--output", str(output), "--format", "json", "-q"]) == 0
    assert output.read_bytes().startswith(b"{")
    for name in ("x.htm", "x.HTML"):
        assert run(["report", str(leaky), "--output", str(tmp_path / name), "-q"]) == 0
        assert (tmp_path / name).read_bytes().lower().startswith(b"<!doctype html>")

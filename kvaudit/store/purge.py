"""A run without its text, or no run at all; a process killed on the way leaves the old or the new.

Text is removed by building the purged run beside the old one and exchanging the two folders in one
step. What is removed is unlinked, not overwritten: on a solid-state disk, a copy-on-write or a
journaling file system overwriting promises nothing. Backups and snapshots are out of reach.
"""

import ctypes
import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvaudit import __version__
from kvaudit.errors import RunFolderError
from kvaudit.findings import AuditRun, Evidence
from kvaudit.store.database import build_database
from kvaudit.store.folder import (
    DATABASE_NAME,
    INGEST_NAME,
    JOURNAL_NAME,
    MANIFEST_NAME,
    PRIVATE_FOLDER_MODE,
    RECORDS_NAME,
    REVEALS_NAME,
    SCANNED_NAME,
    SPILL_NAME,
    RunFolder,
    writing_to,
)  # fmt: skip
from kvaudit.store.journal import read_journal
from kvaudit.store.manifest import Manifest, Purge, read_manifest, write_manifest
from kvaudit.store.reading import open_run
from kvaudit.store.records_file import export_records

PURGED_NOTE = "purged"
PURGED_COUNT = "purged_texts"  # among the counts of a run, so that every report shows it
_RENAME_EXCHANGE = 2  # Linux, renameat2(2)
_RENAME_SWAP = 2  # macOS, renamex_np(2)
_AT_FDCWD = -100

OWN_NAMES = frozenset({
    ".gitignore", JOURNAL_NAME, DATABASE_NAME, RECORDS_NAME, REVEALS_NAME, MANIFEST_NAME,
    SCANNED_NAME, INGEST_NAME, f"{DATABASE_NAME}.wal",
    # What an interrupted scan leaves.
    f"{SCANNED_NAME}.tmp", "ingest.jsonl", "joins.duckdb", "joins.duckdb.wal",
})  # fmt: skip
OWN_FOLDERS = frozenset({SPILL_NAME, "parts", "duckdb-tmp"})
_LINE_TEXTS = {
    "begin": ("request", ("attachments", "canaries", "expected")),
    "twin": ("request", ("attachments", "canaries", "expected")),
    "end": ("reply", ("output_text", "output_token_ids", "output_logprobs", "error_message")),
    "replay": ("replay", ("logprobs",)),
}
SCANNED_TEXTS = (
    "error_message", "gen_ai_system_instructions", "gen_ai_input_messages",
    "gen_ai_output_messages", "input_text", "output_text", "output_reasoning_text",
    "output_tool_text", "context_text", "retrieved_items", "response_headers",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeRules:
    """What only the reports know.

    Attributes:
        plain_keys: Keys of a finding's details whose strings are names or our own words.
        report_names: Names that reports have in a run folder.
        render: Writes the reports of a folder.
    """

    plain_keys: frozenset[str]
    report_names: frozenset[str]
    render: Callable[[RunFolder], None]


def check_folder(folder: RunFolder, report_names: Iterable[str]) -> None:
    """Make sure that a folder holds a run and nothing else.

    Raises:
        RunFolderError: It is a link, or holds what no kvaudit wrote there.
    """
    if folder.path.is_symlink():
        raise RunFolderError(f"`{folder.path}` is a link", hint="name the folder that it leads to")
    known = OWN_NAMES | set(report_names)
    for entry in sorted(folder.path.iterdir()):
        is_half = entry.name.startswith(".") and ".part" in entry.name
        if entry.is_dir() and not entry.is_symlink():
            is_own = entry.name in OWN_FOLDERS
        else:
            is_own = entry.is_file() and not entry.is_symlink() and (entry.name in known or is_half)
        if not is_own:
            raise RunFolderError(
                f"`{entry.name}` in `{folder.path}` is not kvaudit's own",
                hint="move it elsewhere or delete it; only a run folder is purged",
            )


def purge_run(folder: RunFolder) -> None:
    """Delete a whole run folder, checked before.

    Raises:
        RunFolderError: Another process is writing it.
        StorageError: The disk refuses.
    """
    with _alone(folder), writing_to(folder.path):
        condemned = condemned_path(folder.path)
        _remove(condemned)
        folder.path.rename(condemned)  # from here on there is no run
        _sync_folder(condemned.parent)
        shutil.rmtree(condemned)


def purge_text(folder: RunFolder, rules: PurgeRules, at_unix_ns: int) -> int:
    """Replace a run by itself without its text; returns how many texts were removed.

    Raises:
        RunFolderError: It has no verdict, has been purged before, or another process writes it.
        StorageError: The disk refuses; the run is as it was.
    """
    manifest = read_manifest(folder)
    if manifest is not None and manifest.purge is not None:
        raise RunFolderError(f"the text of `{folder.path}` is purged already")
    with _alone(folder), writing_to(folder.path):
        condemned = condemned_path(folder.path)
        _remove(condemned)
        condemned.mkdir(mode=PRIVATE_FOLDER_MODE)
        new = RunFolder(path=condemned)
        try:
            texts = _build(folder, new, rules, manifest, at_unix_ns)
            _sync_folder(new.path)
            _exchange(new.path, folder.path)
            _sync_folder(folder.path.parent)
        finally:
            _remove(condemned)  # the old run, or the half-built new one
    return texts


def condemned_path(path: Path) -> Path:
    """Return where a run lies while it is being built without text, or deleted."""
    whole = path.resolve()
    return whole.with_name(f".{whole.name}.purge")


def finish_purge(path: Path) -> bool:
    """Remove what a killed purge left beside a run; returns whether there was anything.

    Raises:
        RunFolderError: Another process is purging it.
    """
    condemned = condemned_path(path)
    aside = _aside(condemned)
    with writing_to(condemned):
        if aside.is_dir() and not path.exists():  # killed between the two steps of an exchange
            aside.rename(path.resolve())
        with _alone(RunFolder(path=path)):
            return any([_remove(condemned), _remove(aside)])


def _build(
    old: RunFolder, new: RunFolder, rules: PurgeRules, manifest: Manifest | None, at_unix_ns: int
) -> int:
    new.spill_path.mkdir(mode=PRIVATE_FOLDER_MODE)
    new.write(".gitignore", b"*\n")
    with open_run(old) as reader:
        run = reader.run()
    if run is None:
        raise RunFolderError(
            "the run has no verdict yet, so nothing would be left of it",
            hint="finish it with `--resume`, or purge it whole",
        )
    texts = _purge_journal(old, new, at_unix_ns) if old.journal_path.exists() else 0
    if (old.path / SCANNED_NAME).exists():
        texts += _purge_scanned(old.path / SCANNED_NAME, new.path / SCANNED_NAME)
        (new.path / SCANNED_NAME).chmod(0o600)
    if (old.path / INGEST_NAME).exists():
        new.write(INGEST_NAME, (old.path / INGEST_NAME).read_bytes())
    if (old.path / REVEALS_NAME).exists():
        new.write(REVEALS_NAME, _purged_reveals((old.path / REVEALS_NAME).read_bytes()))
    purged, removed = _purged_run(run, rules.plain_keys)
    texts += removed
    purged = replace(purged, counts={**purged.counts, PURGED_COUNT: texts})
    contents = read_journal(new.journal_path)
    build_database(new, contents, purged)
    if (old.path / RECORDS_NAME).exists():
        export_records(new, contents.records)
    rules.render(new)
    before = manifest or Manifest(run_id="", command="", version="", verdict="")
    told = Purge(
        at_unix_ns=at_unix_ns, version=__version__, texts=texts, files=before.files,
        requests=before.requests, evidence=before.evidence,
    )  # fmt: skip
    with open_run(new) as reader:
        write_manifest(new, reader, told)
    return texts


def _purge_journal(old: RunFolder, new: RunFolder, at_unix_ns: int) -> int:
    """Write the journal without text; a damaged line stays one, and loses what it held."""
    made: list[bytes] = []
    texts = 0
    with old.journal_path.open("rb") as file:
        for line in file:
            if not line.strip():
                continue
            data, removed = _purged_line(line)
            texts += removed
            made.append(_line(data))
    note = {"name": PURGED_NOTE, "text": f"by kvaudit {__version__}", "at_unix_ns": at_unix_ns}
    made.append(_line({"kind": "note"} | note))
    new.write(JOURNAL_NAME, b"".join(made))
    return texts


def _purged_line(line: bytes) -> tuple[dict[str, Any], int]:
    try:
        data = json.loads(line.decode("utf-8"))
        kind = data["kind"]
        if kind == "header":
            data.pop("secret", None)  # it keyed digests and tags of what is gone
            return data, 0
        if kind not in _LINE_TEXTS:
            return data, 0
        name, fields = _LINE_TEXTS[kind]
        body = data[name]
        removed = sum(bool(body.pop(field, None)) for field in fields)
        for message in body.get("messages", []):
            removed += bool(message["content"])
            message["content"] = ""
        return data, removed
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"kind": "damaged"}, 1


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _purge_scanned(old: Path, new: Path) -> int:
    """Copy the canonical table of a scan with its text columns empty."""
    removed = 0
    with pq.ParquetFile(old) as file:
        schema = file.schema_arrow
        with pq.ParquetWriter(new, schema, compression="zstd") as writer:
            for batch in file.iter_batches():
                columns = []
                for name, column in zip(schema.names, batch.columns, strict=True):
                    if name in SCANNED_TEXTS:
                        removed += len(column) - column.null_count
                        columns.append(pa.nulls(len(column), column.type))
                    else:
                        columns.append(column)
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return removed


def _purged_reveals(content: bytes) -> bytes:
    """Keep who was shown text, when and why; what was asked may hold text itself."""
    made = []
    for line in content.splitlines():
        try:
            data = json.loads(line)
            data["what"] = str(data["what"]).split(" ")[0]
            made.append(json.dumps(data))
        except (ValueError, KeyError, TypeError):
            made.append(json.dumps({"what": "a line that can't be read"}))
    return "".join(f"{line}\n" for line in made).encode("ascii")


def _purged_run(run: AuditRun, kept: frozenset[str]) -> tuple[AuditRun, int]:
    findings, candidates, removed = [], [], 0
    for finding in run.findings:
        evidence, count = _purged_evidence(finding.evidence, kept)
        findings.append(replace(finding, evidence=evidence))
        removed += count
    for candidate in run.candidates:
        evidence, count = _purged_evidence(candidate, kept)
        candidates.append(evidence)
        removed += count
    return replace(run, findings=tuple(findings), candidates=tuple(candidates)), removed


def _purged_evidence(evidence: Evidence, kept: frozenset[str]) -> tuple[Evidence, int]:
    details, removed = _purged_value(dict(evidence.details), kept)
    return replace(evidence, excerpt="", details=details), removed + bool(evidence.excerpt)


def _purged_value(value: Any, kept: frozenset[str]) -> tuple[Any, int]:
    """Return a JSON value whose strings are null, save those under a kept key, and their count."""
    if isinstance(value, str):
        return None, 1
    if isinstance(value, dict):
        made, removed = {}, 0
        for key, held in value.items():
            made[key], count = (held, 0) if key in kept else _purged_value(held, kept)
            removed += count
        return made, removed
    if isinstance(value, list | tuple):
        pairs = [_purged_value(held, kept) for held in value]
        return [held for held, _ in pairs], sum(count for _, count in pairs)
    return value, 0


@contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    """Hold the lock that a writing kvaudit holds."""
    if not folder.journal_path.exists():
        yield
        return
    descriptor = os.open(folder.journal_path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise RunFolderError(
            f"another kvaudit is writing `{folder.path}`", hint="wait until it has ended"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Exchange two folders in one step where the system can, else in two."""
    libc = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(new), os.fsencode(old)
    status = -1
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        status = libc.renameat2(_AT_FDCWD, first, _AT_FDCWD, second, _RENAME_EXCHANGE)
    elif hasattr(libc, "renamex_np"):
        status = libc.renamex_np(first, second, _RENAME_SWAP)
    if status == 0:
        return
    # Killed between these two, both are whole and the run has another name.
    aside = _aside(new)
    old.rename(aside)
    new.rename(old)
    aside.rename(new)


def _aside(condemned: Path) -> Path:
    return condemned.with_name(f"{condemned.name}d")


def _remove(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return False
    shutil.rmtree(path)
    return True


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

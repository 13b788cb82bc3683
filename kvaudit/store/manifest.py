"""`manifest.json`: what a finished run consists of, piece by piece, with a digest of each.

It finds damage and careless changes. It is no signature: who may write the folder may write a
manifest to match, so note the manifest's own SHA-256 somewhere else if that matters.
"""

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kvaudit import __version__
from kvaudit.errors import NewerRunError, RunFolderError
from kvaudit.findings import AuditRun, Finding, Side
from kvaudit.records import RequestRecord
from kvaudit.store.codec import CodecError, from_json, to_json
from kvaudit.store.digests import digest_key, file_sha256, table_digest, value_digest
from kvaudit.store.folder import (
    INGEST_NAME,
    JOURNAL_NAME,
    MANIFEST_NAME,
    RECORDS_NAME,
    SCANNED_NAME,
    RunFolder,
    writing_to,
)  # fmt: skip
from kvaudit.store.journal import read_journal
from kvaudit.store.reading import RunReader
from kvaudit.store.rows import finding_row

MANIFEST_SCHEMA = 1
REPORT_NAMES = ("report.json", "report.html")
# Hashed byte by byte. `run.duckdb` is not: its bytes depend on the version of DuckDB.
HASHED_NAMES = (JOURNAL_NAME, RECORDS_NAME, SCANNED_NAME, INGEST_NAME, *REPORT_NAMES)
MANIFEST_BYTES_MAX = 1 << 30
_PACKAGES = ("duckdb", "polars", "pyarrow", "numpy", "scipy", "jinja2")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file: its length in bytes and its SHA-256, in hex."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """One table of `run.duckdb`: its rows, and a keyed digest that no order of rows changes."""

    rows: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceEntry:
    """One finding: what it was made of. Digests are keyed; None where a text is not kept.

    Attributes:
        finding: Place in the report, from 0.
        rule, sink, sink_tenant, source, source_tenant, side: As in the report.
        sink_answer: Digest of the whole answer of the sink.
        source_text: Digest of the whole prompt and attachments, or answer, of the source.
        evidence: Digest of the finding itself: spans, excerpt, score, chance, details.
    """

    finding: int
    rule: str
    sink: str
    sink_tenant: str
    evidence: str
    source: str | None = None
    source_tenant: str | None = None
    side: str | None = None
    sink_answer: str | None = None
    source_text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """That the text of the run was removed, and what it was before.

    Attributes:
        at_unix_ns: Wall clock.
        version: Version of kvaudit that did it.
        texts: How many texts were removed.
        files: The files before, as the manifest then told.
        requests, evidence: Digests of the records and of the evidence before, under the old key.
    """

    at_unix_ns: int
    version: str
    texts: int
    files: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[EvidenceEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All pieces of a run.

    Attributes:
        run_id, command, seed, repeat, verdict: As in the report.
        version: Version of kvaudit that judged it.
        versions: Versions of what wrote the manifest.
        files: FileEntry by name.
        tables: TableEntry by name.
        requests: Keyed digest of each record of a live run, by request id.
        evidence: One entry a finding, in the order of the report.
        purge: None unless the text of the run was removed.
    """

    run_id: str
    command: str
    version: str
    verdict: str
    seed: int | None = None
    repeat: str = ""
    versions: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)
    evidence: tuple[EvidenceEntry, ...] = ()
    purge: Purge | None = None
    schema: int = MANIFEST_SCHEMA

    def file(self, name: str) -> FileEntry:
        """Return the entry of one file; raises CodecError where it is none."""
        return from_json(FileEntry, self.files[name])

    def table(self, name: str) -> TableEntry:
        """Return the entry of one table; raises CodecError where it is none."""
        return from_json(TableEntry, self.tables[name])


def write_manifest(folder: RunFolder, reader: RunReader, purge: Purge | None = None) -> Path:
    """Write the manifest of a judged run whose other files are all in place.

    Args:
        folder: The run.
        reader: The same run, open.
        purge: What was removed; None unless the text of the run was.

    Raises:
        StorageError: The disk refuses.
    """
    made = to_json(build_manifest(folder, reader, purge)) | {"schema": MANIFEST_SCHEMA}
    text = json.dumps(made, indent=1, allow_nan=False) + "\n"
    return folder.write(MANIFEST_NAME, text.encode("ascii"))


def build_manifest(folder: RunFolder, reader: RunReader, purge: Purge | None = None) -> Manifest:
    """Return the manifest of a judged run as it lies in its folder."""
    run = reader.run()
    assert run is not None, "only a judged run has a manifest"
    key = digest_key(reader.secret())
    with writing_to(folder.path):
        files = {
            name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
            for name in HASHED_NAMES
            if (path := folder.path / name).is_file()
        }
    tables = {}
    for name in reader.tables():
        made = table_digest(reader.table_rows(name), key)
        tables[name] = {"rows": made.rows, "digest": made.digest}
    recorded = read_journal(folder.journal_path).records if folder.journal_path.exists() else ()
    return Manifest(
        run_id=run.run_id,
        command=run.command,
        version=run.version,
        verdict=run.verdict.value,
        seed=run.seed,
        repeat=run.repeat,
        versions=_versions(),
        files=files,
        tables=tables,
        requests=request_digests(recorded, key),
        evidence=evidence_entries(run, reader.records_of(run), key),
        purge=purge,
    )


def read_manifest(folder: RunFolder) -> Manifest | None:
    """Return the manifest of a run; None where there is none.

    Raises:
        RunFolderError: It is damaged.
        NewerRunError: A newer kvaudit wrote it.
    """
    path = folder.path / MANIFEST_NAME
    try:
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise ValueError("too large")
        data = json.loads(path.read_bytes().decode("utf-8"))
        schema = data["schema"]
        if type(schema) is not int:
            raise ValueError("no schema")
        if schema > MANIFEST_SCHEMA:
            raise NewerRunError(
                f"`{path}` was written by a newer kvaudit (schema {schema})", hint="upgrade kvaudit"
            )
        return from_json(Manifest, data)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, CodecError) as error:
        raise RunFolderError(f"`{path}` is damaged: {error}") from None


def request_digests(records: Iterable[RequestRecord], key: bytes) -> dict[str, str]:
    """Return the keyed digest of each record, by request id."""
    return {record.request_id: value_digest(record, key) for record in records}


def evidence_entries(
    run: AuditRun, records: Mapping[str, RequestRecord], key: bytes
) -> tuple[EvidenceEntry, ...]:
    """Return one entry a finding, in the order of the report."""
    return tuple(
        _evidence_entry(place, finding, records, key) for place, finding in enumerate(run.findings)
    )


def _evidence_entry(
    place: int, finding: Finding, records: Mapping[str, RequestRecord], key: bytes
) -> EvidenceEntry:
    evidence, source = finding.evidence, finding.evidence.source
    sink = records.get(evidence.sink_request_id)
    origin = records.get(source.request_id) if source is not None else None
    text = None
    if source is not None and origin is not None:
        text = origin.own_context if source.side is Side.PROMPT else origin.output_text
    answer = sink.output_text if sink is not None else None
    return EvidenceEntry(
        finding=place,
        rule=evidence.rule_id,
        sink=evidence.sink_request_id,
        sink_tenant=evidence.sink_tenant,
        source=source.request_id if source is not None else None,
        source_tenant=source.tenant if source is not None else None,
        side=source.side.value if source is not None else None,
        sink_answer=None if answer is None else value_digest(answer, key),
        source_text=None if text is None else value_digest(text, key),
        evidence=value_digest(finding_row(finding, place), key),
    )


def _versions() -> dict[str, str]:
    found = {"kvaudit": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found

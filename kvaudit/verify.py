"""A run derived again from its records and compared with what is stored, piece by piece.

Nothing is written into the run. What can't be checked is said: a purged run has no text to judge.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit.errors import KvauditError
from kvaudit.findings import AuditRun, Evidence, Family
from kvaudit.records import RequestRecord
from kvaudit.rules import RULES
from kvaudit.store.codec import CodecError
from kvaudit.store.digests import canonical, digest_key, file_sha256, table_digest
from kvaudit.store.folder import (
    DATABASE_NAME,
    JOURNAL_NAME,
    MANIFEST_NAME,
    RECORDS_NAME,
    SCANNED_NAME,
    RunFolder,
)  # fmt: skip
from kvaudit.store.journal import JournalContents, read_journal
from kvaudit.store.manifest import (
    HASHED_NAMES,
    REPORT_NAMES,
    EvidenceEntry,
    Manifest,
    Purge,
    evidence_entries,
    read_manifest,
    request_digests,
)  # fmt: skip
from kvaudit.store.reading import RunReader, open_run
from kvaudit.store.records_file import read_records
from kvaudit.store.rows import record_row
from kvaudit.store.tables import table_rows

NUMBER_FAMILIES = frozenset({Family.ACCOUNTING, Family.TIMING})
# Counts that follow from what was sent and from outcomes, whatever the texts were.
_NUMBER_COUNTS = ("requests", "role_", "outcome_", "prompt_tokens_sent", "completion_tokens")
_KEY_OF_TABLE = {
    "requests": ("request_id",), "twins": ("request_id",), "canaries": ("label",),
    "findings": ("rule_id", "sink_request_id", "source"),
    "candidates": ("rule_id", "sink_request_id", "source"),
    "bounds": ("stratum",), "oracles": ("rule_id",), "run": (),
}  # fmt: skip
ONLY_NUMBERS = (
    "the text was purged: verdict, findings and bounds stand as stored, and only what outcomes and"
    " token counts decide was derived again"
)
_DERIVED_TABLES = frozenset({"run", "findings", "candidates", "bounds", "oracles"})
_EVIDENCE_PARTS = {
    "sink_answer": "the answer of its sink",
    "source_text": "the text of its source",
    "evidence": "its spans, excerpt or numbers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it was.

    Attributes:
        piece: A file of the run folder.
        item: What in it: a request, a finding, a line, a place; "" for the piece as a whole.
        field: Which part of the item; "" for all of it.
        problem: What is wrong, in words that hold no text of the run.
    """

    piece: str
    item: str
    field: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One step of the verification: `whole`, `differs` or `not done`, and what to know of it."""

    name: str
    state: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What became of a run.

    Attributes:
        run_id: From its manifest or database; "" if neither can be read.
        manifest_sha256: Of the manifest file; None without one.
        purge: None unless the text of the run was removed, which leaves less to check.
        checks: Every step, in order.
        differences: In order, causes first.
    """

    run_id: str
    manifest_sha256: str | None
    checks: tuple[Check, ...]
    differences: tuple[Difference, ...]
    purge: Purge | None = None

    @property
    def is_whole(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """How to make again what a run holds; given by who knows judges and reports.

    Attributes:
        judge: Judges the run of this folder and journal again; the run as stored, if it can be
            read, tells when it ended.
        render: Makes one report (`report.json`, `report.html`) from a run, its records and the
            secret of its tags.
    """

    judge: Callable[[RunFolder, JournalContents, AuditRun | None], AuditRun]
    render: Callable[[str, AuditRun, Mapping[str, RequestRecord], str], bytes]


def verify_run(folder: RunFolder, again: Again) -> Verification:
    """Check every piece of a run and derive it again."""
    return _Verifying(folder, again).verification()


class _Verifying:
    """What was found so far in one run."""

    def __init__(self, folder: RunFolder, again: Again) -> None:
        self._folder = folder
        self._again = again
        self._checks: list[Check] = []
        self._found: list[Difference] = []
        self._manifest: Manifest | None = None
        self._contents: JournalContents | None = None
        self._stored: AuditRun | None = None
        self._derived: AuditRun | None = None
        self._key = b""

    def verification(self) -> Verification:
        """Take every step and return what came of it."""
        self._step("manifest", MANIFEST_NAME, self._read_manifest)
        self._step("files", MANIFEST_NAME, self._check_files)
        self._step("journal", JOURNAL_NAME, self._check_journal)
        if not self._is_scan():  # a scan is judged with what its database knows
            self._step("judgement", JOURNAL_NAME, self._judge_again)
        if (self._folder.path / DATABASE_NAME).exists():
            try:
                with open_run(self._folder) as reader:
                    self._check_open(reader)
            except KvauditError as error:
                self._differs(DATABASE_NAME, "", "", error.message)
                self._checks.append(Check(name="database", state="differs"))
        else:
            self._differs(DATABASE_NAME, "", "", "missing")
            self._checks.append(Check(name="database", state="differs"))
        self._step("records file", RECORDS_NAME, self._check_records_file)
        path = self._folder.path / MANIFEST_NAME
        known = self._manifest or self._stored
        return Verification(
            run_id=known.run_id if known is not None else "",
            manifest_sha256=file_sha256(path) if path.is_file() else None,
            checks=tuple(self._checks),
            differences=tuple(dict.fromkeys(self._found)),
            purge=self._manifest.purge if self._manifest is not None else None,
        )

    def _check_open(self, reader: RunReader) -> None:
        self._stored = reader.run()
        self._key = digest_key(reader.secret())
        if self._stored is None:
            self._differs(DATABASE_NAME, "", "", "the run has no verdict yet")
        elif self._contents is not None:
            lost = self._contents.damaged_lines - self._stored.counts.get("damaged_lines", 0)
            if lost:
                lines = ", ".join(map(str, self._contents.damaged_at))
                self._differs(JOURNAL_NAME, f"line {lines}", "", "can't be read any more")
        if self._is_scan():
            self._step("judgement", SCANNED_NAME, self._judge_again)
        self._step("database", DATABASE_NAME, lambda: self._check_tables(reader))
        self._step("evidence", MANIFEST_NAME, lambda: self._check_evidence(reader))
        self._step("reports", DATABASE_NAME, lambda: self._check_reports(reader))

    def _is_purged(self) -> bool:
        return self._manifest is not None and self._manifest.purge is not None

    def _is_scan(self) -> bool:
        header = self._contents.header if self._contents is not None else None
        return header is not None and header.command == "scan"

    def _step(self, name: str, piece: str, take: Callable[[], str | None]) -> None:
        """Take one step; what it returns is why it could not be taken, None if it was."""
        before = len(self._found)
        try:
            why = take()
        except KvauditError as error:
            why = None
            self._differs(piece, "", "", error.message)
        except CodecError as error:
            why = None
            self._differs(piece, "", "", f"is damaged: {error}")
        if why is None:
            state = "differs" if len(self._found) > before else "whole"
            self._checks.append(Check(name=name, state=state))
        elif why:  # "" is a step that this kind of run does not have
            self._checks.append(Check(name=name, state="not done", note=why))

    def _differs(self, piece: str, item: str, field: str, problem: str) -> None:
        self._found.append(Difference(piece=piece, item=item, field=field, problem=problem))

    def _read_manifest(self) -> str | None:
        self._manifest = read_manifest(self._folder)
        if self._manifest is None:
            self._differs(
                MANIFEST_NAME, "", "", "missing: the run never came to its end, or it was removed"
            )
        return None

    def _check_files(self) -> str | None:
        if self._manifest is None:
            return "there is no manifest to compare with"
        for name in self._manifest.files:
            entry, path = self._manifest.file(name), self._folder.path / Path(name).name
            try:
                if path.stat().st_size != entry.bytes or file_sha256(path) != entry.sha256:
                    self._differs(name, "", "", "its bytes are not those of the manifest")
            except FileNotFoundError:
                self._differs(name, "", "", "missing")
            except OSError as error:
                self._differs(name, "", "", f"can't be read: {error.strerror}")
        for name in HASHED_NAMES:
            if name not in self._manifest.files and (self._folder.path / name).exists():
                self._differs(name, "", "", "stands in no manifest")
        return None

    def _check_journal(self) -> str | None:
        if not self._folder.journal_path.exists():
            self._differs(JOURNAL_NAME, "", "", "missing")
            return None
        self._contents = contents = read_journal(self._folder.journal_path)
        if contents.header is None:
            self._differs(JOURNAL_NAME, "line 1", "", "the header can't be read")
        if self._manifest is None or contents.header is None:
            return None
        told = self._manifest.requests
        seen = request_digests(contents.records, digest_key(contents.header.secret))
        for request_id in dict.fromkeys([*told, *seen]):
            if request_id not in seen:
                self._differs(JOURNAL_NAME, f"request {request_id}", "", "missing")
            elif request_id not in told:
                self._differs(JOURNAL_NAME, f"request {request_id}", "", "added")
            elif told[request_id] != seen[request_id]:
                self._differs(
                    JOURNAL_NAME, f"request {request_id}", "", "is not the record of the manifest"
                )
        return None

    def _judge_again(self) -> str | None:
        header = self._contents.header if self._contents is not None else None
        if header is not None and header.command == "preflight":
            return "a preflight keeps no sources; its command judges them again"
        if self._contents is None or self._contents.header is None:
            return "the journal can't be read"
        self._derived = self._again.judge(self._folder, self._contents, self._stored)
        return ONLY_NUMBERS if self._is_purged() else None

    def _check_tables(self, reader: RunReader) -> str | None:
        tables = reader.tables()
        if self._manifest is not None:
            for name in self._manifest.tables:
                if name not in tables:
                    self._differs(DATABASE_NAME, f"table {name}", "", "missing")
                    continue
                entry = self._manifest.table(name)
                seen = table_digest(reader.table_rows(name), self._key)
                if (seen.rows, seen.digest) != (entry.rows, entry.digest):
                    self._differs(
                        DATABASE_NAME, f"table {name}", "",
                        f"its rows are not those of the manifest ({seen.rows} of {entry.rows})",
                    )  # fmt: skip
            for name in sorted(set(tables) - set(self._manifest.tables)):
                self._differs(DATABASE_NAME, f"table {name}", "", "stands in no manifest")
        if self._contents is None:
            return None
        is_derived = self._derived is not None and not self._is_purged()
        made = table_rows(self._contents, self._derived)
        for name, rows in made.items():
            if name not in tables or (name in _DERIVED_TABLES and not is_derived):
                continue
            keys = _KEY_OF_TABLE[name]
            for item, field, problem in row_differences(
                list(rows), list(reader.table_rows(name)), keys, as_derived=name in _DERIVED_TABLES
            ):
                self._differs(DATABASE_NAME, f"{name} {item}".strip(), field, problem)
        if self._is_purged():
            self._check_numbers()
        return None

    def _check_numbers(self) -> None:
        """Compare what numbers alone decide: all that can be derived without the texts."""
        stored, derived = self._stored, self._derived
        if stored is None or derived is None:
            return
        for name, count in stored.counts.items():
            if name.startswith(_NUMBER_COUNTS) and derived.counts.get(name) != count:
                self._differs(
                    DATABASE_NAME, f"count {name}", "",
                    f"stored {count}, derived {derived.counts.get(name)}",
                )  # fmt: skip
        told, seen = _number_evidence(stored), _number_evidence(derived)
        for rule_id, sink in sorted(told ^ seen):
            problem = "is not derived again" if (rule_id, sink) in told else "is not stored"
            self._differs(DATABASE_NAME, f"{rule_id} on request {sink}", "", problem)

    def _check_evidence(self, reader: RunReader) -> str | None:
        if self._manifest is None or self._stored is None:
            return "there is no manifest or no verdict to compare with"
        records = reader.records_of(self._stored)
        if self._contents is not None and self._contents.records:
            records = {held.request_id: held for held in self._contents.records}
        seen = evidence_entries(self._stored, records, self._key)
        told = self._manifest.evidence
        if len(seen) != len(told):
            self._differs(
                DATABASE_NAME, "findings", "", f"{len(seen)} stand there, {len(told)} were judged"
            )
        for before, now in zip(told, seen, strict=False):
            for name, words in _EVIDENCE_PARTS.items():
                if getattr(before, name) != getattr(now, name):
                    self._differs(
                        _piece_of(name, self._stored), _finding_name(before), name,
                        f"{words} is not what was judged",
                    )  # fmt: skip
        return None

    def _check_reports(self, reader: RunReader) -> str | None:
        run = self._stored or self._derived
        if run is None:
            return "there is no verdict to render"
        records = reader.records_of(run)
        for name in REPORT_NAMES:
            path = self._folder.path / name
            if not path.exists():
                self._differs(name, "", "", "missing")
                continue
            made, held = self._again.render(name, run, records, reader.secret()), path.read_bytes()
            if made != held:
                for item, problem in byte_differences(name, made, held):
                    self._differs(name, item, "", problem)
        return None

    def _check_records_file(self) -> str | None:
        path = self._folder.path / RECORDS_NAME
        if self._contents is None:
            return "the journal can't be read"
        if not self._contents.records and not path.exists():
            return ""  # a scan keeps its records elsewhere
        if not path.exists():
            self._differs(RECORDS_NAME, "", "", "missing")
            return None
        made = [record_row(record, at) for at, record in enumerate(self._contents.records)]
        held = [record_row(record, at) for at, record in enumerate(read_records(path))]
        for item, field, problem in row_differences(made, held, ("request_id",), as_derived=False):
            self._differs(RECORDS_NAME, f"request {item}", field, problem)
        return None


def row_differences(
    made: Iterable[Mapping[str, Any]],
    held: Iterable[Mapping[str, Any]],
    keys: tuple[str, ...],
    *,
    as_derived: bool,
) -> Iterator[tuple[str, str, str]]:
    """Yield (item, field, problem) for each row that is not the same on both sides.

    Args:
        made: Rows as they must be.
        held: Rows as they are.
        keys: Columns that name a row.
        as_derived: The rows come from a judgement, not from records.
    """
    wanted, found = _by_key(made, keys), _by_key(held, keys)
    origin = "a judgement of the records" if as_derived else "the journal"
    for key in dict.fromkeys([*wanted, *found]):
        if key not in found:
            yield key, "", f"missing; {origin} gives it"
        elif key not in wanted:
            yield key, "", f"added; {origin} does not give it"
        else:
            before, now = wanted[key], found[key]
            for name in sorted({*before, *now}):
                if before.get(name) != now.get(name):
                    yield key, name, f"is not what {origin} gives"


def byte_differences(name: str, made: bytes, held: bytes) -> Iterator[tuple[str, str]]:
    """Yield (item, problem) for a report that is not what is rendered again."""
    if name.endswith(".json"):
        try:
            found = list(_json_differences(json.loads(made), json.loads(held.decode("utf-8")), "$"))
        except (ValueError, RecursionError):
            yield "", "is no JSON any more"
            return
        if found:
            yield from ((place, "is not what is rendered again") for place in found)
            return
    lines, others = made.split(b"\n"), held.split(b"\n")
    for number, (line, other) in enumerate(zip(lines, others, strict=False), start=1):
        if line != other:
            column = next(
                (at for at, (a, b) in enumerate(zip(line, other, strict=False), 1) if a != b),
                min(len(line), len(other)) + 1,
            )
            yield f"line {number}, byte {column}", "is not what is rendered again"
            return
    yield "", f"has {len(others)} lines; {len(lines)} are rendered again"


def _json_differences(made: Any, held: Any, place: str) -> Iterator[str]:
    if isinstance(made, dict) and isinstance(held, dict):
        for key in dict.fromkeys([*made, *held]):
            if key not in made or key not in held:
                yield f"{place}.{key}"
            else:
                yield from _json_differences(made[key], held[key], f"{place}.{key}")
    elif isinstance(made, list) and isinstance(held, list) and len(made) == len(held):
        for index, (first, second) in enumerate(zip(made, held, strict=True)):
            yield from _json_differences(first, second, f"{place}[{index}]")
    elif made != held or type(made) is not type(held):
        yield place


def _by_key(rows: Iterable[Mapping[str, Any]], keys: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    used: Counter[str] = Counter()
    for row in rows:
        name = " ".join(_key_text(row.get(key)) for key in keys if row.get(key) is not None)
        used[name] += 1
        held = canonical(dict(row))
        if "rule_id" in keys:
            held.pop("position", None)
        made[name if used[name] == 1 else f"{name} #{used[name]}"] = held
    return made


def _key_text(value: Any) -> str:
    return f"from {value.get('request_id')}" if isinstance(value, Mapping) else str(value)


def _finding_name(entry: EvidenceEntry) -> str:
    source = f" from request {entry.source}" if entry.source is not None else ""
    return f"finding {entry.finding} ({entry.rule} on request {entry.sink}{source})"


def _piece_of(part: str, run: AuditRun) -> str:
    if part == "evidence":
        return DATABASE_NAME
    return SCANNED_NAME if run.command == "scan" else JOURNAL_NAME


def _number_evidence(run: AuditRun) -> set[tuple[str, str]]:
    evidence: list[Evidence] = [*(finding.evidence for finding in run.findings), *run.candidates]
    return {
        (held.rule_id, held.sink_request_id)
        for held in evidence
        if held.rule_id in RULES and RULES[held.rule_id].family in NUMBER_FAMILIES
    }

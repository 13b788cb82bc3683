"""One scan, all steps: logs in, rules over the table, judged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kvaudit
from kvaudit.clock import Clock, SimulatedClock
from kvaudit.errors import RunFolderError
from kvaudit.findings import AuditRun, Json
from kvaudit.forensics.disk import disk_errors
from kvaudit.forensics.ingest import Report
from kvaudit.forensics.load import SUMMARY, TABLE, Ingested, ingest
from kvaudit.forensics.metadata import MetadataRules, RuleOutcome
from kvaudit.forensics.source import find_files
from kvaudit.scan.answers import incoherence_outcomes
from kvaudit.scan.compare import compare_texts
from kvaudit.scan.config import ScanConfig
from kvaudit.scan.coverage import Coverage, coverage_of
from kvaudit.scan.incidents import with_incidents
from kvaudit.scan.judging import ScanJudgement, judge_scan
from kvaudit.store.codec import CodecError, from_json
from kvaudit.store.journal import JournalHeader

NO_TENANT = (
    "no record names a tenant, so nobody can be foreign to anybody: name the field with"
    " `--tenant-field PATH`, or add a gateway or router log that shares request ids"
)
ONE_ORGANISATION = (
    "every record is of one organisation, so nobody's text can be foreign: scan the logs of all"
    " tenants that share the server"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """A judged scan and what was read for it."""

    run: AuditRun
    ingested: Ingested


def scan_logs(
    config: ScanConfig,
    folder: Path,
    clock: Clock,
    *,
    run_id: str,
    repeat: str,
    started_unix_ns: int,
    resume: bool = False,
    report: Report | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Scanned:
    """Read, examine and judge logs.

    Args:
        config: What to read and how to judge, checked.
        folder: The run folder; the table is written there.
        clock: For progress and the end of the run.
        run_id: Name of the run.
        repeat: Command line that repeats it.
        started_unix_ns: Wall clock at the start.
        resume: Go on with an interrupted ingest.
        report: Called with the progress of the ingest.
        say: Called with one line before each further step.
    """
    ingested = ingest(
        find_files(list(config.logs)), config.ingest, folder, clock, resume=resume, report=report
    )
    run = judge_ingested(
        config, ingested, folder, clock, run_id=run_id, repeat=repeat,
        started_unix_ns=started_unix_ns, say=say,
    )  # fmt: skip
    return Scanned(run=run, ingested=ingested)


def judge_again(header: JournalHeader, folder: Path, scratch: Path, ended_unix_ns: int) -> AuditRun:
    """Judge a scan again from its canonical table; the logs are not needed any more.

    Args:
        header: First line of the scan's journal.
        folder: The scan's folder; nothing is written there.
        scratch: An empty folder.
        ended_unix_ns: When the scan ended, since no record tells it.

    Raises:
        RunFolderError: The table or its summary is missing or damaged.
    """
    for name in (TABLE, SUMMARY):
        if not (folder / name).is_file():
            raise RunFolderError(f"`{folder / name}` is missing")
        (scratch / name).symlink_to((folder / name).resolve())
    (scratch / "tmp").mkdir()
    try:
        config = from_json(ScanConfig, header.config)
    except CodecError as error:
        raise RunFolderError(f"the settings of the scan are damaged: {error}") from None
    clock = SimulatedClock(ended_unix_ns)
    ingested = ingest([], config.ingest, scratch, clock, resume=True)
    return judge_ingested(
        config, ingested, scratch, clock, run_id=header.run_id, repeat=header.repeat,
        started_unix_ns=header.started_unix_ns,
    )  # fmt: skip


def judge_ingested(
    config: ScanConfig,
    ingested: Ingested,
    folder: Path,
    clock: Clock,
    *,
    run_id: str,
    repeat: str,
    started_unix_ns: int,
    say: Callable[[str], None] = lambda _: None,
) -> AuditRun:
    """Examine and judge an ingested log; arguments as in `scan_logs`."""
    say("metadata rules")
    with disk_errors(folder / "tmp"):
        looked = _looked_at(config, ingested, folder)
    say("answers that make no sense")
    outcomes = [*looked.outcomes, *incoherence_outcomes(ingested.table)]
    say("texts of different tenants")
    with disk_errors(folder / "tmp"):
        compared = compare_texts(config, ingested, folder / "tmp")
    judged = judge_scan(
        [*outcomes, *compared.outcomes], looked.coverage, min_coverage=config.min_coverage,
        obstacles=_obstacles(config, looked, ingested), q_values=dict(compared.q_values),
    )  # fmt: skip
    return AuditRun(
        run_id=run_id,
        command="scan",
        version=kvaudit.__version__,
        verdict=judged.verdict,
        reasons=judged.reasons,
        repeat=repeat,
        started_unix_ns=started_unix_ns,
        ended_unix_ns=clock.unix_ns(),
        target=_target(ingested),
        config=config.as_json(),
        findings=with_incidents(judged.findings),
        candidates=judged.candidates,
        oracles=judged.oracles,
        not_examinable=judged.not_examinable,
        counts=_counts(looked, ingested, judged),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    """What the table's own numbers say."""

    outcomes: list[RuleOutcome]
    counts: dict[str, int]
    coverage: Coverage


def _looked_at(config: ScanConfig, ingested: Ingested, folder: Path) -> _Looked:
    rules = MetadataRules(
        ingested.table, folder / "tmp", pool_tokens=config.pool_tokens,
        context_tokens=config.context_tokens,
    )  # fmt: skip
    try:
        return _Looked(
            outcomes=rules.outcomes(),
            counts=rules.counts(),
            coverage=coverage_of(rules.coverage_rows()),
        )
    finally:
        rules.close()


def _obstacles(config: ScanConfig, looked: _Looked, ingested: Ingested) -> list[str]:
    """Return what else keeps a scan without findings from being clean: whatever was not seen."""
    owners = looked.counts["organisations"]
    obstacles = [NO_TENANT] if owners == 0 else [ONE_ORGANISATION] if owners == 1 else []
    lost, expected = sum(ingested.damages.values()), looked.coverage.expected
    if lost > (1 - config.min_coverage) * (expected + lost):
        worst = sorted(ingested.damages.items(), key=lambda held: -held[1])[:3]
        reasons = ", ".join(f"{count} x {reason}" for reason, count in worst)
        obstacles.append(f"{lost} records are damaged beside {expected} that are not: {reasons}")
    unread = [file for file in ingested.files if file.format is None]
    if unread:
        named = "; ".join(f"`{file.name}`: {file.refusal}" for file in unread[:3])
        obstacles.append(
            f"{len(unread)} of {len(ingested.files)} files could not be read, so leave out what is"
            f" no log: {named}"
        )
    return obstacles


def _counts(looked: _Looked, ingested: Ingested, judged: ScanJudgement) -> dict[str, int]:
    sinks = {finding.evidence.details.get("record_id") for finding in judged.findings}
    return looked.counts | {
        "examined": looked.coverage.examined,
        "answers_expected": looked.coverage.expected,
        "damaged_records": sum(ingested.damages.values()),
        "unreadable_files": sum(file.format is None for file in ingested.files),
        "outside_window": ingested.outside_window,
        "joined_requests": ingested.requests_joined,
        "layers_differ": ingested.layers_differ,
        "sinks_with_findings": len(sinks),
    }


def _target(ingested: Ingested) -> dict[str, Json]:
    """Return what was read, as the run's target."""
    return {
        "kind": "logs",
        "files": [
            {
                "name": file.name, "format": file.format, "refusal": file.refusal,
                "rows": file.rows, "bytes": file.raw_bytes, "damages": dict(file.damages),
                "notes": list(file.notes),
            }
            for file in ingested.files
        ],
        "clocks": {
            "notes": list(ingested.clocks.notes),
            "skew_ms": ingested.skew_us / 1000,
            "pairs": [
                {"first": list(skew.first), "second": list(skew.second),
                 "median_ms": skew.median_us / 1000, "requests": skew.requests}
                for skew in ingested.clocks.skews
            ],
        },
    }  # fmt: skip

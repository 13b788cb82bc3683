"""One scan, all steps: logs in, rules over the table, judged."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import kvaudit
from kvaudit.clock import Clock
from kvaudit.findings import AuditRun, Json
from kvaudit.forensics.ingest import Report
from kvaudit.forensics.load import Ingested, ingest
from kvaudit.forensics.metadata import MetadataRules, RuleOutcome
from kvaudit.forensics.source import find_files
from kvaudit.scan.answers import incoherence_outcomes
from kvaudit.scan.config import ScanConfig
from kvaudit.scan.coverage import Coverage, coverage_of
from kvaudit.scan.judging import ScanJudgement, judge_scan

NO_CONTENT_ORACLE = (
    "the texts of different tenants were not compared: that part is not built in this version"
)
NO_TENANT = (
    "no record names a tenant, so nobody can be foreign to anybody: name the field with"
    " `--tenant-field PATH`, or add a gateway or router log that shares request ids"
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
    say("metadata rules")
    looked = _looked_at(config, ingested, folder)
    say("answers that make no sense")
    outcomes = [*looked.outcomes, *incoherence_outcomes(ingested.table)]
    obstacles = [NO_CONTENT_ORACLE]
    if looked.counts["tenants"] == 0:
        obstacles.insert(0, NO_TENANT)
    judged = judge_scan(
        outcomes, looked.coverage, min_coverage=config.min_coverage, obstacles=obstacles
    )
    run = AuditRun(
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
        findings=judged.findings,
        candidates=judged.candidates,
        oracles=judged.oracles,
        not_examinable=judged.not_examinable,
        counts=_counts(looked, ingested, judged),
    )
    return Scanned(run=run, ingested=ingested)


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

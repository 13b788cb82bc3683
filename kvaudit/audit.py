"""Records in, AuditRun out; knows no probe, no engine and no report."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import kvaudit
from kvaudit.config import AuditConfig, audit_config
from kvaudit.detect.corpus import Corpus
from kvaudit.errors import RunFolderError
from kvaudit.findings import AuditRun, Json
from kvaudit.judge import judge
from kvaudit.records import RequestRecord
from kvaudit.serverfacts import ServerFacts
from kvaudit.store.journal import JournalContents
from kvaudit.target import PlannedRequest


def judge_run(
    *,
    records: Iterable[RequestRecord],
    twins: Iterable[PlannedRequest],
    config: AuditConfig,
    strata: Sequence[str],
    facts: ServerFacts,
    run_id: str,
    repeat: str = "",
    started_unix_ns: int | None = None,
    ended_unix_ns: int | None = None,
    stopped: str | None = None,
    command: str = "audit",
) -> AuditRun:
    """Judge one live run.

    Args:
        records: Every request of the run, unfinished ones as UNKNOWN.
        twins: Never-sent twins of the fills.
        config: What the run was asked to do.
        strata: The strata that its plan set out to examine.
        facts: What the target said of itself.
        run_id: Name of the run.
        repeat: Command line that repeats it.
        started_unix_ns: Wall clock at the start.
        ended_unix_ns: Wall clock at the end.
        stopped: Why the run ended before its plan; None if it did not.
        command: The kvaudit command that made it.
    """
    corpus = Corpus(records=tuple(records), twins=tuple(twins), facts=facts)
    judgement = judge(
        corpus,
        strata=strata,
        confidence=config.confidence,
        target_rate=config.target_rate,
        stopped=stopped,
    )
    return AuditRun(
        run_id=run_id,
        command=command,
        version=kvaudit.__version__,
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        repeat=repeat,
        seed=config.seed,
        started_unix_ns=started_unix_ns,
        ended_unix_ns=ended_unix_ns,
        target=_json_object(facts),
        config=_json_object(config),
        findings=judgement.findings,
        candidates=judgement.candidates,
        bounds=judgement.bounds,
        oracles=judgement.oracles,
        not_examinable=judgement.not_examinable,
        counts=judgement.counts,
    )


def judge_journal(contents: JournalContents) -> AuditRun:
    """Judge a live run by its journal alone, at its end or at any later time.

    Raises:
        RunFolderError: The journal does not hold what the judge needs.
    """
    header, closing = contents.header, contents.closing
    if header is None:
        raise RunFolderError("the first line of the journal is damaged, so its run is not known")
    if closing is None:
        raise RunFolderError(
            "the run was never judged", hint="finish it with `kvaudit audit --resume --out DIR`"
        )
    run = judge_run(
        records=contents.records,
        twins=contents.twins,
        config=audit_config(closing.config),
        strata=closing.strata,
        facts=closing.facts or ServerFacts(),
        run_id=header.run_id,
        repeat=header.repeat,
        started_unix_ns=header.started_unix_ns,
        ended_unix_ns=closing.ended_unix_ns,
        stopped=closing.stopped,
        command=header.command,
    )
    known = {
        "damaged_lines": contents.damaged_lines,
        "resumed": sum(note.name == "resumed" for note in contents.notes),
    }
    return replace(run, counts={**run.counts, **known})


def _json_object(value: ServerFacts | AuditConfig) -> dict[str, Json]:
    return {name: _json(held) for name, held in asdict(value).items()}


def _json(value: object) -> Json:
    if isinstance(value, dict):
        return {str(name): _json(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_json(held) for held in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise AssertionError(f"no JSON value: {value!r}")

"""One preflight: its sources, its folder, its reports."""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kvaudit import __version__
from kvaudit.cli.audit_run import Options, tell, write_reports
from kvaudit.cli.remote import refuse_unauthorised
from kvaudit.cli.session import new_folder
from kvaudit.cli.terminal import escape, say, write_text
from kvaudit.clock import Clock
from kvaudit.config import AuditConfig
from kvaudit.errors import ConfigError, UnknownNameError
from kvaudit.findings import AuditRun, Json
from kvaudit.preflight.capacity import capacity_facts
from kvaudit.preflight.deployment import Deployment, Piece, assemble, with_setting, with_version
from kvaudit.preflight.judging import Judgement, judge_deployment
from kvaudit.preflight.options import ENGINES
from kvaudit.preflight.sources import read_sources
from kvaudit.preflight.versions import parse_version
from kvaudit.serverfacts import ServerAnswers
from kvaudit.store.database import build_database
from kvaudit.store.journal import Journal, JournalHeader, read_journal

GAPS_TOLD = 12
# A source may be a whole command line.
_SECRET_FLAG = re.compile(
    r"((?:api[-_]?key|token|password|secret)\w*[= ]+)[^\s-]\S*", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How running servers may be asked for their own pages.

    Attributes:
        api_key_env: Variable that holds a key; none = a token minted for this.
        is_authorised: A server that is not loopback may be asked.
    """

    api_key_env: tuple[str, ...] = ()
    is_authorised: bool = False

    def pages(self, url: str) -> ServerAnswers:
        """Return the pages of one server; nothing is sent but reads of them.

        Raises:
            ConfigError: The URL or key does not fit, or the server may not be asked unasked.
            TargetError: It can't be reached.
        """
        from probes.client import http_target

        refuse_unauthorised(url, is_authorised=self.is_authorised)
        config = AuditConfig(target=url, api_key_env=self.api_key_env[:1])
        with closing(http_target(config, api_key_env=self.api_key_env[:1])) as target:
            return target.answers()


def run_preflight(
    sources: Sequence[str],
    versions: Sequence[str],
    clock: Clock,
    *,
    memory: tuple[float, float] | None = None,
    asking: Asking | None = None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Judge a deployment into a run folder; returns the exit status."""
    deployment = read_deployment(sources, versions, memory, asking)
    judgement = judge_deployment(deployment)
    header = _header(sources, versions, memory, clock)
    folder = new_folder(out, header)
    Journal.start(folder.journal_path, header, clock).close()
    run = as_run(deployment, judgement, header, clock.unix_ns())
    build_database(folder, read_journal(folder.journal_path), run)
    write_reports(folder)
    if not as_json:
        write_text(told(deployment, judgement))
    options = Options(
        out=out, as_json=as_json, is_quiet=quiet, is_dry_run=False, is_resumed=False,
        retries_unknown=False, flags={}, settings={},
    )  # fmt: skip
    return tell(folder, options) if as_json else _tell_folder(folder.path, judgement, quiet)


def _tell_folder(path: Path, judgement: Judgement, quiet: bool) -> int:
    if not quiet:
        say(f"run folder: {escape(str(path))}")
    return judgement.verdict.exit_status


def read_deployment(
    sources: Sequence[str],
    versions: Sequence[str],
    memory: tuple[float, float] | None = None,
    asking: Asking | None = None,
) -> Deployment:
    """Return the deployment that the sources tell of.

    Raises:
        ConfigError: A source or a version can't be used.
    """
    pieces = read_sources(sources, (asking or Asking()).pages)
    for text in versions:
        pieces = _versioned(pieces, text)
    for name, gib in zip(("card_gib", "weights_gib"), memory or (), strict=False):
        flag = f"`--{name.replace('_', '-')}`"
        pieces = [with_setting(piece, name, gib, flag) if piece.engine else piece
                  for piece in pieces]  # fmt: skip
    return assemble(pieces)


def _versioned(pieces: list[Piece], text: str) -> list[Piece]:
    engine, mark, version = text.rpartition("=")
    if mark and engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES)
    if parse_version(version) is None:
        raise ConfigError(f"`{version}` is no version", hint="write it like `0.5.22`")
    engines = {piece.engine for piece in pieces if piece.engine}
    if not mark and len(engines) > 1:
        raise ConfigError(
            f"`--engine-version {text}` may mean any of {', '.join(sorted(engines))}",
            hint="write `--engine-version ENGINE=VERSION`",
        )
    return [
        with_version(piece, version, "`--engine-version`")
        if piece.engine and (not mark or piece.engine == engine)
        else piece
        for piece in pieces
    ]


def as_run(
    deployment: Deployment, judgement: Judgement, header: JournalHeader, ended_unix_ns: int
) -> AuditRun:
    """Return a judged preflight as the run that every report renders."""
    by_severity: dict[str, int] = {}
    for finding in judgement.findings:
        key = f"hazards_{finding.severity.value}"
        by_severity[key] = by_severity.get(key, 0) + 1
    return AuditRun(
        run_id=header.run_id,
        command="preflight",
        version=header.version,
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        repeat=header.repeat,
        started_unix_ns=header.started_unix_ns,
        ended_unix_ns=ended_unix_ns,
        target=_target(deployment, judgement),
        config=header.config,
        findings=judgement.findings,
        counts={"roles": len(deployment.roles), "unknown": len(judgement.gaps), **by_severity},
    )


def _target(deployment: Deployment, judgement: Judgement) -> dict[str, Json]:
    return {
        "roles": [
            {
                "role": role.role,
                "workload": role.workload,
                "engine": role.engine,
                "version": None if role.version is None else str(role.version.value),
                **capacity_facts(role, deployment),
                "settings": {name: held.value for name, held in sorted(role.settings.items())
                             if not _is_secret(name) and name != "model_config"},
                "sources": list(role.sources),
            }
            for role in deployment.roles
        ],
        "unknown": [{**asdict(gap), "hazards": list(gap.hazards)} for gap in judgement.gaps],
        "assumptions": list(judgement.assumptions),
        "conflicts": list(deployment.conflicts),
        "notes": list(deployment.notes),
    }  # fmt: skip


def _is_secret(name: str) -> bool:
    return any(word in name for word in ("api_key", "token_file", "password", "secret", "hf_token",
                                         "ssl_key"))  # fmt: skip


def told(deployment: Deployment, judgement: Judgement) -> str:
    """Return the outcome in words, for a terminal."""
    lines = [f"{judgement.verdict.value.replace('_', ' ').upper()}"
             f" (exit status {judgement.verdict.exit_status})"]  # fmt: skip
    lines += [f"Reason: {reason}" for reason in judgement.reasons]
    lines += ["", "Deployment"]
    for role in deployment.roles:
        sizes = capacity_facts(role, deployment)
        version = role.version.value if role.version is not None else "of unknown version"
        pool, context = sizes["pool_tokens"], sizes["context_tokens"]
        lines.append(
            f"  {role.name}: {role.engine or 'unknown engine'} {version}, context"
            f" {_number(context)}, pool {_number(pool)}" + _range(sizes)
        )
    lines += ["", "Hazards"] + [
        line for finding in judgement.findings for line in (
            f"  {finding.severity.value}: {finding.evidence.rule_id}"
            f" {finding.evidence.details['what']}",
            f"      fix: {finding.evidence.details['fix']}",
            "      see: " + ", ".join(_texts(finding.evidence.details["sources"])),
        )
    ]  # fmt: skip
    if not judgement.findings:
        lines.append("  none that is known holds")
    lines += _gaps(judgement)
    for title, texts in (("Taken for granted", judgement.assumptions),
                         ("Sources disagree", deployment.conflicts),
                         ("Notes", deployment.notes)):  # fmt: skip
        if texts:
            lines += ["", title, *(f"  {text}" for text in texts)]
    return "\n".join(escape(line) for line in lines) + "\n"


def _gaps(judgement: Judgement) -> list[str]:
    if not judgement.gaps:
        return []
    lines = ["", "Not known"]
    for gap in judgement.gaps[:GAPS_TOLD]:
        mark = "" if gap.is_decisive else " (warnings only)"
        lines.append(
            f"  `{gap.fact}` of {gap.role}: " + (", ".join(gap.hazards) or "everything") + mark
        )
    if len(judgement.gaps) > GAPS_TOLD:
        lines.append(f"  and {len(judgement.gaps) - GAPS_TOLD} more; `--json` lists them")
    return lines


def _texts(value: Json) -> list[str]:
    return [str(held) for held in value] if isinstance(value, list) else []


def _range(sizes: Mapping[str, Json]) -> str:
    held = sizes.get("pool_range_tokens")
    return f" (reckoned: {held[0]:,} to {held[1]:,})" if isinstance(held, list) else ""


def _number(value: Json) -> str:
    return f"{value:,}" if isinstance(value, int) else "unknown"


def _header(
    sources: Sequence[str],
    versions: Sequence[str],
    memory: tuple[float, float] | None,
    clock: Clock,
) -> JournalHeader:
    started = clock.unix_ns()
    moment = datetime.fromtimestamp(started / 1e9, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    named = [_SECRET_FLAG.sub(r"\1***", source) for source in sources]
    flags = [word for text in versions for word in ("--engine-version", text)]
    if memory is not None:
        flags += ["--card-gib", f"{memory[0]:g}", "--weights-gib", f"{memory[1]:g}"]
    return JournalHeader(
        run_id=f"{moment}-preflight",
        command="preflight",
        version=__version__,
        started_unix_ns=started,
        config={"sources": named, "engine_version": list(versions)},
        repeat=shlex.join(["kvaudit", "preflight", *named, *flags]),
        secret=secrets.token_hex(16),
    )

"""One log scan: its settings, its folder, its progress, its reports."""

import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvaudit import __version__
from kvaudit.cli.audit_run import Options, tell, write_reports
from kvaudit.cli.progress import ScanProgress
from kvaudit.cli.session import new_folder, refuse_purged
from kvaudit.cli.terminal import escape, say, write_json, write_table, write_text
from kvaudit.clock import Clock
from kvaudit.errors import ConfigError, RunFolderError, UnknownNameError
from kvaudit.forensics.load import SUMMARY, TABLE
from kvaudit.forensics.options import IngestOptions, instant_of, window_of
from kvaudit.scan.canary_list import read_canaries
from kvaudit.scan.config import ScanConfig
from kvaudit.scan.preview import Preview, preview_logs
from kvaudit.scan.run import scan_logs
from kvaudit.store.database import build_database
from kvaudit.store.folder import RunFolder
from kvaudit.store.journal import Journal, JournalHeader, read_journal

_LIST_KEYS = ("tenant_field", "same_tenant", "map")
_KEYS = (
    "format", "tenant_field", "same_tenant", "replica_field", "window", "pool_tokens",
    "context_tokens", "assume_tz", "year", "server_start", "map", "engine", "canaries",
    "min_coverage",
)  # fmt: skip


def scan_config(
    logs: Sequence[str], flags: Mapping[str, Any], settings: Mapping[str, Any]
) -> ScanConfig:
    """Build and check the settings of a scan; flags win over the settings file.

    Raises:
        ConfigError: A value does not fit, or a key is not known.
    """
    for key in settings:
        if key not in _KEYS:
            raise UnknownNameError("configuration key", key, _KEYS)
    values = {**settings, **flags}
    for key in _LIST_KEYS:
        if isinstance(values.get(key), str):
            values[key] = [values[key]]
    try:
        config = _built(logs, values)
        config.check()
    except TypeError as error:
        raise ConfigError(f"a value has the wrong type: {error}") from None
    return config


def _built(logs: Sequence[str], values: Mapping[str, Any]) -> ScanConfig:
    window, start = values.get("window"), values.get("server_start")
    listed = values.get("canaries")
    ingest = IngestOptions(
        format=values.get("format", "auto"),
        tenant_fields=tuple(values.get("tenant_field", ())),
        replica_field=values.get("replica_field"),
        same_tenants=tuple(_pair(text, "--same-tenant") for text in values.get("same_tenant", ())),
        window=window_of(window) if window is not None else None,
        assume_tz=values.get("assume_tz"),
        year=values.get("year"),
        server_start_us=instant_of(start, "--server-start") if start is not None else None,
        columns=dict(_pair(text, "--map") for text in values.get("map", ())),
    )
    return ScanConfig(
        logs=tuple(logs),
        ingest=ingest,
        pool_tokens=values.get("pool_tokens"),
        context_tokens=values.get("context_tokens"),
        min_coverage=values.get("min_coverage", 0.99),
        engine=values.get("engine"),
        canaries=read_canaries(Path(listed)) if listed is not None else (),
        canary_file=str(listed) if listed is not None else None,
    )


def _pair(text: str, flag: str) -> tuple[str, str]:
    first, mark, second = text.partition("=")
    if not mark or not first.strip() or not second.strip():
        raise ConfigError(f"`{flag} {text}` has no two sides", hint=f"write `{flag} A=B`")
    return first.strip(), second.strip()


def run_scan(
    config: ScanConfig,
    clock: Clock,
    *,
    out: Path | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Scan logs into a run folder; returns the exit status."""
    folder, header = _opened(config, clock, out, resume=resume)
    progress = ScanProgress(clock, quiet=quiet)
    try:
        with closing(progress):
            scanned = scan_logs(
                config, folder.path, clock, run_id=header.run_id, repeat=header.repeat,
                started_unix_ns=header.started_unix_ns, resume=resume,
                report=progress.ingested, say=progress.step,
            )  # fmt: skip
    except ConfigError:
        _discard_empty(folder)
        raise
    for name in (TABLE, SUMMARY):
        (folder.path / name).chmod(0o600)
    build_database(folder, read_journal(folder.journal_path), scanned.run)
    write_reports(folder)
    if not quiet:
        _say_notes(scanned.ingested.clocks.notes, scanned.ingested.damages)
    return tell(folder, _tell_options(out, as_json=as_json, quiet=quiet))


def _tell_options(out: Path | None, *, as_json: bool, quiet: bool) -> Options:
    return Options(
        out=out, as_json=as_json, is_quiet=quiet, is_dry_run=False, is_resumed=False,
        retries_unknown=False, flags={}, settings={},
    )  # fmt: skip


def _opened(
    config: ScanConfig, clock: Clock, out: Path | None, *, resume: bool
) -> tuple[RunFolder, JournalHeader]:
    if resume:
        if out is None:
            raise ConfigError(
                "`--resume` needs the run to go on with", hint="name it with `--out DIR`"
            )
        folder = RunFolder.open(out)
        contents = read_journal(folder.journal_path)
        refuse_purged(contents)
        earlier = contents.header
        if earlier is None or earlier.command != "scan":
            raise RunFolderError(f"`{out}` holds no scan", hint="name the folder of a scan")
        return folder, earlier
    header = _header(config, clock)
    folder = new_folder(out, header)
    Journal.start(folder.journal_path, header, clock).close()
    return folder, header


def _header(config: ScanConfig, clock: Clock) -> JournalHeader:
    started = clock.unix_ns()
    moment = datetime.fromtimestamp(started / 1e9, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
    return JournalHeader(
        run_id=f"{moment}-scan",
        command="scan",
        version=__version__,
        started_unix_ns=started,
        config=config.as_json(),
        repeat=shlex.join(["kvaudit", "scan", *config.logs, *_arguments(config)]),
        secret=secrets.token_hex(16),
    )


def _arguments(config: ScanConfig) -> list[str]:
    """Return the flags that repeat this scan."""
    ingest = config.ingest
    single = {
        "--format": None if ingest.format == "auto" else ingest.format,
        "--replica-field": ingest.replica_field,
        "--window": _window_text(ingest.window),
        "--pool-tokens": config.pool_tokens,
        "--context-tokens": config.context_tokens,
        "--assume-tz": ingest.assume_tz,
        "--year": ingest.year,
        "--server-start": _instant_text(ingest.server_start_us),
        "--engine": config.engine,
        "--canaries": config.canary_file,
        "--min-coverage": None if config.min_coverage == 0.99 else config.min_coverage,
    }
    made = [text for flag, value in single.items() if value is not None
            for text in (flag, str(value))]  # fmt: skip
    for rule in ingest.tenant_fields:
        made += ["--tenant-field", rule]
    for first, second in ingest.same_tenants:
        made += ["--same-tenant", f"{first}={second}"]
    for column, canonical in ingest.columns.items():
        made += ["--map", f"{column}={canonical}"]
    return made


_OPEN_END_US = 2**61


def _window_text(window: tuple[int, int] | None) -> str | None:
    if window is None:
        return None
    return "..".join(
        "" if abs(edge) > _OPEN_END_US else _instant_text(edge) or "" for edge in window
    )


def _instant_text(us: int | None) -> str | None:
    if us is None:
        return None
    seconds, rest = divmod(us, 1_000_000)
    moment = datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=rest)
    return moment.isoformat().replace("+00:00", "Z")


def _discard_empty(folder: RunFolder) -> None:
    """Remove a folder in which nothing came about, so that the next try may use its name."""
    for name in (".gitignore", "journal.jsonl"):
        (folder.path / name).unlink(missing_ok=True)
    try:
        folder.spill_path.rmdir()
        folder.path.rmdir()
    except OSError:
        return


def _say_notes(notes: Sequence[str], damages: Mapping[str, int]) -> None:
    for note in notes:
        say(f"note: {escape(note)}")
    for reason, count in sorted(damages.items()):
        say(f"note: {count} x {escape(reason)}")


def dry_scan(config: ScanConfig, clock: Clock, *, as_json: bool) -> int:
    """Say what the logs are, what they cover and how long a scan will take."""
    preview = preview_logs(config, clock)
    if as_json:
        write_json({"schema": 1, "command": "scan --dry-run", "items": preview.items(),
                    "summary": preview.summary()})  # fmt: skip
        return 0
    write_table(
        ("file", "format", "bytes", "records", "with answer", "tenants", "from", "to"),
        [_preview_row(item) for item in preview.items()],
    )
    _tell_summary(preview)
    return 0


def _preview_row(item: Mapping[str, Any]) -> tuple[Any, ...]:
    if item["refusal"]:
        return item["name"], "not read", item["bytes"], item["refusal"], "", "", "", ""
    return (
        item["name"], item["format"], item["bytes"], item["records"], item["with_answer"],
        item["tenants"], item["first"] or "", item["last"] or "",
    )  # fmt: skip


def _tell_summary(preview: Preview) -> None:
    from reports.wording import counted

    summary = preview.summary()
    write_text(
        f"\n{counted(summary['files'], 'file')}, {summary['bytes']:,} bytes; in the sample:"
        f" {counted(summary['sampled_records'], 'record')},"
        f" {counted(summary['sampled_tenants'], 'tenant')}\n"
    )
    seconds = summary["estimated_s"]
    if seconds is not None:
        write_text(f"a scan will take about {max(1, round(seconds))} s\n")
    for line in preview.notes:
        write_text(f"note: {escape(line)}\n")

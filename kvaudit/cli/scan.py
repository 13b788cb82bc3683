"""`kvaudit scan`: the flags; what they start is in `scan_run`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from kvaudit.cli.flags import Config, ContextTokens, Json, Out, Quiet, file_settings

Logs = Annotated[
    list[str], Argument(metavar="LOGS...", help="Log files, folders, globs; `-` is stdin.")
]
Format = Annotated[
    str | None, Option("--format", metavar="NAME", help="Log format.  [default: by content]")
]
TenantField = Annotated[
    list[str] | None,
    Option("--tenant-field", metavar="PATH[~REGEX]", help="Field that names the tenant; repeat."),
]
SameTenant = Annotated[
    list[str] | None,
    Option("--same-tenant", metavar="A=B", help="Two tenants of one organisation; repeat."),
]
ReplicaField = Annotated[
    str | None, Option("--replica-field", metavar="PATH[~REGEX]", help="Field with the replica.")
]
Window = Annotated[
    str | None, Option("--window", metavar="FROM..TO", help="Only requests that start in it.")
]
PoolTokens = Annotated[
    int | None,
    Option("--pool-tokens", metavar="N", help="Smallest KV pool that a prompt must fit into."),
]
AssumeTz = Annotated[
    str | None, Option("--assume-tz", metavar="ZONE", help="Zone of times that name none.")
]
Year = Annotated[int | None, Option("--year", metavar="YYYY", help="Year of times without one.")]
ServerStart = Annotated[
    str | None, Option("--server-start", metavar="TIME", help="Start of a server that logs since.")
]
Map = Annotated[
    list[str] | None,
    Option("--map", metavar="COLUMN=CANONICAL", help="What a column of a table means; repeat."),
]
Engine = Annotated[str | None, Option("--engine", metavar="NAME", help="duckdb or polars.")]
Canaries = Annotated[
    Path | None, Option("--canaries", metavar="FILE", help="Planted canaries to look for, as JSON.")
]
MinCoverage = Annotated[
    float | None,
    Option("--min-coverage", metavar="SHARE", help="Examinable share for clean.  [default: .99]"),
]
DryRunScan = Annotated[
    bool, Option("--dry-run", help="Say what the logs are, and how long it will take.")
]
ResumeScan = Annotated[
    bool, Option("--resume", help="Go on with an interrupted scan in --out; same logs and flags.")
]


def scan(
    logs: Logs,
    format_name: Format = None,
    tenant_field: TenantField = None,
    same_tenant: SameTenant = None,
    replica_field: ReplicaField = None,
    window: Window = None,
    pool_tokens: PoolTokens = None,
    context_tokens: ContextTokens = None,
    assume_tz: AssumeTz = None,
    year: Year = None,
    server_start: ServerStart = None,
    columns: Map = None,
    engine: Engine = None,
    canaries: Canaries = None,
    min_coverage: MinCoverage = None,
    dry_run: DryRunScan = False,
    resume: ResumeScan = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Find one tenant's text in another tenant's answers, in request logs."""
    from kvaudit.cli.scan_run import dry_scan, run_scan, scan_config
    from kvaudit.clock import WallClock

    flags = {
        "format": format_name, "tenant_field": tenant_field, "same_tenant": same_tenant,
        "replica_field": replica_field, "window": window, "pool_tokens": pool_tokens,
        "context_tokens": context_tokens, "assume_tz": assume_tz, "year": year,
        "server_start": server_start, "map": columns, "engine": engine, "canaries": canaries,
        "min_coverage": min_coverage,
    }  # fmt: skip
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    settings = scan_config(logs, given, file_settings(config, "scan"))
    if dry_run:
        return dry_scan(settings, WallClock(), as_json=json)
    return run_scan(settings, WallClock(), out=out, resume=resume, as_json=json, quiet=quiet)

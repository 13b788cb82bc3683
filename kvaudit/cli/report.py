"""`kvaudit report`: a run as a page, an object or a text; the same run gives the same bytes."""

import sys
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from kvaudit.cli.flags import Json, Output, Quiet, Reason, Reveal, Run
from kvaudit.cli.opening import opened
from kvaudit.cli.saving import destination, note_reveal, refuse_lone_reason, saving
from kvaudit.cli.terminal import escape, say, write_text
from kvaudit.errors import ConfigError

EVENTS_BYTES_MAX = 1 << 20
_FORMAT_OF_SUFFIX = {
    "html": "html", "htm": "html", "json": "json", "md": "markdown", "sarif": "sarif",
    "xml": "junit", "csv": "csv", "parquet": "parquet",
}  # fmt: skip

Format = Annotated[
    str | None,
    Option(
        "--format",
        metavar="NAME",
        help="text, html, json, markdown, sarif, junit, csv or parquet.  [default: text]",
    ),
]


Events = Annotated[
    Path | None,
    Option("--events", metavar="FILE", help="Events and facts of the incident, as TOML."),
]
TenantName = Annotated[
    str | None,
    Option("--tenant", metavar="ALIAS", help="Only this tenant's annex, as Markdown."),
]


def report(
    run: Run,
    format_name: Format = None,
    output: Output = None,
    events: Events = None,
    tenant: TenantName = None,
    reveal: Reveal = False,
    reason: Reason = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Render a run again."""
    from kvaudit.store.folder import RunFolder
    from reports.events import read_events

    refuse_lone_reason(reason, reveal=reveal)
    output = destination(output)
    name = format_name or ("json" if json else _format_of(output, tenant))
    _check_fit(name, events, tenant)
    incident = None if events is None else read_events(_events_text(events), events.name)
    folder = RunFolder.open(run)
    with opened(folder) as reader:
        content = rendered(reader, name, reveal=reveal, incident=incident, tenant=tenant)
    if reveal:  # before anything is shown
        what = f"report {name}" if tenant is None else f"report {name} for one tenant"
        note_reveal(folder, what, reason)
    if output is None:
        _print(content)
    else:
        with saving(output) as half:
            half.write_bytes(content)
        if not quiet:
            say(f"wrote {escape(str(output))}")
    return 0


def rendered(
    reader: Any,
    format_name: str,
    *,
    reveal: bool = False,
    incident: Any = None,
    tenant: str | None = None,
) -> bytes:
    """Return one report of an open run.

    Args:
        reader: A RunReader.
        format_name: One of `reports.FORMATS`.
        reveal: Show text unredacted.
        incident: What an events file says; None without one.
        tenant: Make this tenant's annex instead of the report.

    Raises:
        UnknownNameError: There is no such format or tenant.
        RunFolderError: The run has no verdict yet.
    """
    from reports.formats import ReportInput, report_format
    from reports.redact import redaction_key

    chosen = report_format(format_name)
    run = reader.judged()
    records = reader.records_of(run) if chosen.needs_records else {}
    secret = reader.secret()
    key = redaction_key(secret) if secret else b""
    content: bytes = chosen.render(
        ReportInput(
            run=run, records=records, key=key, reveal=reveal, incident=incident, tenant=tenant
        )
    )
    return content


def _check_fit(format_name: str, events: Path | None, tenant: str | None) -> None:
    """Refuse what the format would leave out without a word."""
    from reports.formats import report_format

    name = report_format(format_name).name
    if tenant is not None and name != "markdown":
        raise ConfigError(
            f"`--tenant` makes an annex, which is Markdown and not {name}",
            hint="leave `--format` out, or use `--format markdown`",
        )
    if events is not None and (tenant is not None or name not in ("markdown", "html")):
        shown = "an annex" if tenant is not None else f"`--format {name}`"
        raise ConfigError(
            f"{shown} shows no events", hint="`--events` goes with `--format markdown` or `html`"
        )


def _events_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(EVENTS_BYTES_MAX + 1)
        if len(content) > EVENTS_BYTES_MAX:
            raise ConfigError(f"`{path}` is larger than {EVENTS_BYTES_MAX:,} bytes")
        return content.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"can't read `{path}`: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"`{path}` is not UTF-8 text") from None


def _print(content: bytes) -> None:
    """Write the very bytes, whatever the encoding of the terminal."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # replaced by something that takes text alone
        write_text(_as_text(content))
        return
    if sys.stdout.isatty():
        _as_text(content)  # no Parquet on a screen
    sys.stdout.flush()
    binary.write(content)
    binary.flush()


def _as_text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError("this format is no text", hint="name a file with `--output`") from None


def _format_of(output: Path | None, tenant: str | None) -> str:
    """Return the format that the ending of a file names; ConfigError for one that names none."""
    default = "text" if tenant is None else "markdown"
    suffix = output.suffix.lstrip(".").lower() if output is not None else ""
    if suffix in ("", "txt"):
        return default
    if suffix not in _FORMAT_OF_SUFFIX:
        endings = ", ".join(f".{held}" for held in ("txt", *_FORMAT_OF_SUFFIX))
        raise ConfigError(
            f"`.{suffix}` is the ending of no format",
            hint=f"known: {endings}; or name the format with `--format`:"
            " text, html, json, markdown, sarif, junit, csv or parquet",
        )
    return _FORMAT_OF_SUFFIX[suffix]

"""`kvaudit report`: a run as a page, an object or a text; the same run gives the same bytes."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from kvaudit.cli.flags import Json, Output, Quiet, Reveal, Run, not_built
from kvaudit.cli.saving import note_reveal, saving
from kvaudit.cli.terminal import escape, say, write_text
from kvaudit.errors import ConfigError, RunFolderError

_FORMAT_OF_SUFFIX = {
    "html": "html", "json": "json", "md": "markdown", "sarif": "sarif", "xml": "junit",
    "csv": "csv", "parquet": "parquet",
}  # fmt: skip
_LATER_FORMATS = ("markdown", "sarif", "junit", "csv", "parquet")

Format = Annotated[
    str | None,
    Option(
        "--format",
        metavar="NAME",
        help="text, html, json, markdown, sarif, junit, csv or parquet.  [default: text]",
    ),
]


def report(
    run: Run,
    format_name: Format = None,
    output: Output = None,
    reveal: Reveal = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Render a run again."""
    from kvaudit.store.folder import RunFolder
    from kvaudit.store.reading import open_run

    name = format_name or ("json" if json else _format_of(output))
    folder = RunFolder.open(run)
    with open_run(folder) as reader:
        content = rendered(reader, name, reveal=reveal)
    if reveal:  # before anything is shown
        note_reveal(folder, f"report {name}")
    if output is None:
        write_text(_as_text(content, name))
    else:
        with saving(output) as half:
            half.write_bytes(content)
        if not quiet:
            say(f"wrote {escape(str(output))}")
    return 0


def rendered(reader: Any, format_name: str, *, reveal: bool = False) -> bytes:
    """Return one report of an open run.

    Raises:
        UnknownNameError: There is no such format.
        RunFolderError: The run has no verdict yet.
    """
    from reports.formats import FORMATS, ReportInput, report_format
    from reports.redact import redaction_key

    if format_name in _LATER_FORMATS and format_name not in FORMATS:
        raise not_built(f"--format {format_name}")
    chosen = report_format(format_name)
    run = reader.run()
    if run is None:
        raise RunFolderError(
            "the run has no verdict yet", hint="finish it with `kvaudit audit --resume --out DIR`"
        )
    records = reader.records_of(run) if chosen.needs_records else {}
    secret = reader.secret()
    key = redaction_key(secret) if secret else b""
    content: bytes = chosen.render(ReportInput(run=run, records=records, key=key, reveal=reveal))
    return content


def _as_text(content: bytes, format_name: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(
            f"`{format_name}` is no text", hint="name a file with `--output`"
        ) from None


def _format_of(output: Path | None) -> str:
    suffix = output.suffix.lstrip(".") if output is not None else ""
    return _FORMAT_OF_SUFFIX.get(suffix, "text")

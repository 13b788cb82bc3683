"""`kvaudit query`: SQL over a run, in a sandbox."""

import csv
import io
import json as json_module
import math
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from kvaudit.cli.flags import Json as JsonFlag
from kvaudit.cli.flags import Output, Reason, Reveal, Run
from kvaudit.cli.flags import Quiet as QuietFlag
from kvaudit.cli.opening import opened
from kvaudit.cli.saving import destination, note_reveal, refuse_lone_reason, saving
from kvaudit.cli.terminal import write_json, write_table, write_text
from kvaudit.errors import ConfigError, UnknownNameError

SUMMARY_WIDTH = 120
FORMATS = ("table", "json", "csv", "parquet")

Question = Annotated[
    str | None, Argument(metavar="[NAME|SQL]", help="A view, a question, or SQL over the views.")
]
Format = Annotated[str | None, Option("--format", metavar="NAME", help="|".join(FORMATS))]
List = Annotated[bool, Option("--list", help="List views, their columns, and questions.")]


def query(
    run: Run,
    question: Question = None,
    list_names: List = False,
    format_name: Format = None,
    output: Output = None,
    reveal: Reveal = False,
    reason: Reason = None,
    json: JsonFlag = False,
    quiet: QuietFlag = False,  # noqa: ARG001
) -> int:
    """Ask a run: a named view, a named question, or any SELECT."""
    from kvaudit.store.folder import RunFolder

    refuse_lone_reason(reason, reveal=reveal)
    output = destination(output)
    chosen = _format(format_name, as_json=json, output=output)
    folder = RunFolder.open(run)
    with opened(folder, reveal=reveal) as reader:
        if list_names or question is None:
            _list(reader, as_json=chosen == "json")
            return 0
        if reveal:
            note_reveal(folder, f"query {question}", reason)
        result = reader.query(question)
        if output is None:
            _print(result, chosen)
        else:
            _save(result, chosen, output)
    return 0


def _format(name: str | None, *, as_json: bool, output: Path | None) -> str:
    suffix = output.suffix.lstrip(".").lower() if output is not None else ""
    chosen = name or ("json" if as_json else suffix if suffix in FORMATS else "table")
    if chosen not in FORMATS:
        raise UnknownNameError("format", chosen, FORMATS)
    if chosen == "parquet" and output is None:
        raise ConfigError("Parquet is no text", hint="name a file with `--output`")
    return chosen


def _list(reader: Any, *, as_json: bool) -> None:
    from kvaudit.store.reading import named_queries

    columns = reader.columns()
    items = [
        {
            "name": held.name,
            "kind": held.kind,
            "summary": held.summary,
            "columns": columns.get(held.name, []) if held.kind == "view" else [],
        }
        for held in named_queries().values()
    ]
    if as_json:
        write_json({"schema": 1, "command": "query", "items": items})
        return
    write_table(
        ("name", "kind", "answers"),
        [(item["name"], item["kind"], item["summary"]) for item in items],
        widest=SUMMARY_WIDTH,
    )
    for name, held in columns.items():
        write_text(f"\n{name}: {', '.join(held)}\n")


def _print(result: Any, format_name: str) -> None:
    if format_name == "table":
        write_table(
            result.columns, ([_shown(value) for value in row.values()] for row in result.rows())
        )
    elif format_name == "json":
        write_text(_json_text(result))
    else:
        for line in _csv_lines(result):
            write_text(line)


def _save(result: Any, format_name: str, path: Path) -> None:
    from kvaudit.store.exports import write_parquet

    if format_name == "table":
        raise ConfigError("a table is for the screen", hint="use `--format csv|json|parquet`")
    with saving(path) as half:
        if format_name == "parquet":
            write_parquet(result, half)
        else:
            lines = _csv_lines(result) if format_name == "csv" else [_json_text(result)]
            with half.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
                file.writelines(lines)


def _json_text(result: Any) -> str:
    items = [_json_row(row) for row in result.rows()]
    value = {"schema": 1, "command": "query", "items": items}
    return json_module.dumps(value, indent=2, allow_nan=False) + "\n"


def _csv_lines(result: Any) -> Iterator[str]:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(result.columns)
    for row in result.rows():
        writer.writerow([_csv_cell(value) for value in row.values()])
        yield buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
    yield buffer.getvalue()


def _csv_cell(value: Any) -> Any:
    text = _shown(value)
    # A spreadsheet would run what begins like a formula.
    return f"'{text}" if isinstance(value, str) and text[:1] in "=+-@\t\r" and text else text


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json_module.dumps(_json_value(value), ensure_ascii=False)
    return str(_json_value(value))


def _json_row(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _json_value(value) for name, value in row.items()}


def _json_value(value: Any) -> Any:
    """Return a value of a query as strict JSON: dates as ISO 8601, no NaN."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return [_json_value(held) for held in value]
    if isinstance(value, dict):
        return {str(name): _json_value(held) for name, held in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)

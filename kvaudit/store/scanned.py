"""The canonical table of a log scan, offered to the views of a run.

The texts of a scan stay in `requests.parquet`; `run.duckdb` holds what was found in them. A live
run has no such table, so an empty one of the same columns stands in its place.
"""

from collections.abc import Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pads

from kvaudit.errors import NewerRunError, RunFolderError
from kvaudit.findings import AuditRun
from kvaudit.records import RequestRecord
from kvaudit.store.codec import from_json
from kvaudit.store.database import statement
from kvaudit.store.folder import SCANNED_NAME, RunFolder

_SOURCE = "scanned_file"


def offer_scanned(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Make `scanned` known to a connection that still may create things.

    Raises:
        RunFolderError: The table is damaged.
        NewerRunError: It has columns that this version does not know.
    """
    connection.execute(statement("empty_scanned"))
    path = folder.path / SCANNED_NAME
    if not path.exists():
        connection.execute(statement("nothing_scanned"))
        return
    try:
        table = pads.dataset(path, format="parquet")
        names = set(table.schema.names)
    except (pa.ArrowException, OSError):
        raise RunFolderError(
            f"`{path}` is damaged", hint="scan the logs again into another folder"
        ) from None
    known = set(connection.table("scanned_empty").columns)
    if names - known:
        raise NewerRunError(
            f"`{path}` has columns that this version does not know:"
            f" {', '.join(sorted(names - known)[:3])}",
            hint="upgrade kvaudit",
        )
    connection.register(_SOURCE, table)
    connection.execute(statement("some_scanned"))


def ids_in_findings(run: AuditRun) -> set[str]:
    """Return every request that a finding of a run names, as sink or as source."""
    evidence = [finding.evidence for finding in run.findings]
    ids = {held.sink_request_id for held in evidence}
    return ids | {held.source.request_id for held in evidence if held.source is not None}


def scanned_record_of_row(row: Mapping[str, Any]) -> RequestRecord:
    """Return one row of the canonical table as a record; raises CodecError where none fits."""
    data = {name: value for name, value in row.items() if value is not None}
    prompt, context = data.pop("input_text", None), data.pop("context_text", None)
    if prompt is not None:
        data["messages"] = [{"role": "user", "content": prompt}]
    if context is not None:
        data["attachments"] = [context]
    return from_json(RequestRecord, data)

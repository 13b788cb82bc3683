"""Every table of a run as rows, made from its journal and its verdict alone."""

from collections.abc import Iterator

from kvaudit.findings import AuditRun
from kvaudit.store.journal import JournalContents
from kvaudit.store.rows import (
    Row,
    canary_rows,
    candidate_row,
    finding_row,
    plain_row,
    record_row,
    run_row,
    twin_row,
)


def table_rows(contents: JournalContents, run: AuditRun | None) -> dict[str, Iterator[Row]]:
    """Return the rows of each table; the judged tables stay empty while there is no verdict.

    A row may leave out columns, which are null.
    """
    records, twins = contents.records, contents.twins
    rows: dict[str, Iterator[Row]] = {
        "run": iter([run_row(contents, run)]),
        "requests": (record_row(record, position) for position, record in enumerate(records)),
        "twins": (twin_row(twin) for twin in twins),
        "canaries": iter(canary_rows(records, twins)),
    }
    if run is None:
        return rows
    return rows | {
        "findings": (finding_row(held, at) for at, held in enumerate(run.findings)),
        "candidates": (candidate_row(held, at) for at, held in enumerate(run.candidates)),
        "bounds": (plain_row(bound) for bound in run.bounds),
        "oracles": (plain_row(oracle) for oracle in run.oracles),
    }

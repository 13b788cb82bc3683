"""Words to people and data to programs: stdout is for data, stderr for everything else.

Whatever is shown was written by others: control characters, bidirectional overrides and lone
surrogates are spelled out, so that no text of a run can move the cursor or hide itself.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

CELL_WIDTH_MAX = 60
_RED, _YELLOW, _BOLD, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def escape(text: str, *, keep: str = "") -> str:
    """Return `text` with every character that is not plainly printable spelled out.

    Args:
        text: Hostile text.
        keep: Characters to leave as they are, such as a newline.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char
        if char in keep or unicodedata.category(char) not in _UNPRINTABLE
        else _spelled_out(char)
        for char in text
    )


def has_colour(stream: TextIO) -> bool:
    """Return whether to write colour: on a terminal, unless NO_COLOR or TERM=dumb asks not to."""
    return (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    )


def say(text: str) -> None:
    """Write one line for people."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def say_error(message: str, hint: str | None) -> None:
    """Write what is wrong and how to mend it."""
    _say_labelled("error", _RED, message)
    if hint:
        _say_labelled("hint", _YELLOW, hint)


def write_text(text: str) -> None:
    """Write text of our own making to stdout; what is hostile in it was escaped before."""
    sys.stdout.write(text)
    sys.stdout.flush()


def write_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout, and nothing else goes there."""
    # ASCII, so that no terminal obeys what a string holds.
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
    sys.stdout.flush()


def write_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, widest: int = CELL_WIDTH_MAX
) -> None:
    """Write aligned columns to stdout, each cell on one line and at most `widest` characters."""
    cells = [[escape(column) for column in columns]]
    cells += [[_cell(value, widest) for value in row] for row in rows]
    widths = [max(display_width(row[at]) for row in cells) for at in range(len(columns))]
    for number, row in enumerate(cells):
        padded = (
            cell + " " * (width - display_width(cell))
            for cell, width in zip(row, widths, strict=True)
        )
        line = "  ".join(padded).rstrip()
        is_head = number == 0 and has_colour(sys.stdout)
        sys.stdout.write(f"{_BOLD}{line}{_PLAIN}\n" if is_head else f"{line}\n")
        if number == 0:
            sys.stdout.write("  ".join("-" * width for width in widths) + "\n")
    sys.stdout.flush()


def display_width(text: str) -> int:
    """Return how many columns a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def _say_labelled(label: str, colour: str, text: str) -> None:
    shown = f"{colour}{label}:{_PLAIN}" if has_colour(sys.stderr) else f"{label}:"
    say(f"{shown} {escape(text)}")


def _spelled_out(char: str) -> str:
    code = ord(char)
    return (
        f"\\x{code:02x}"
        if code < 0x100
        else f"\\u{code:04x}"
        if code < 0x10000
        else f"\\U{code:08x}"
    )


def _cell(value: Any, widest: int) -> str:
    text = "" if value is None else escape(str(value))
    return text if len(text) <= widest else text[: widest - 1] + "…"

"""Untrusted text inside Markdown: shown, and never read as Markdown, HTML or a link."""

import re
from collections.abc import Sequence

from reports import neutral

# Letters of any script, digits and punctuation that Markdown gives no meaning inside a line.
_HARMLESS = re.compile(r"[^\W_](?:[^\W_]|[ ,.;:%^()'’“”–/-])*")
_LINK_LIKE = re.compile(r"://|www\.|\w:\w|\]\(", re.IGNORECASE)


def code(text: str) -> str:
    """Return a code span that holds `text`, fit for a table cell too."""
    shown = neutral.sentence(text)
    if not shown.strip():
        return "(empty)"
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{pad}{shown}{pad}{fence}".replace("|", "\\|")


def words(text: str) -> str:
    """Return a sentence as plain words where it is harmless, else as a code span."""
    shown = neutral.sentence(text)
    if _HARMLESS.fullmatch(shown) and not _LINK_LIKE.search(shown):
        return shown
    return code(text)


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a pipe table; cells are Markdown already."""
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)

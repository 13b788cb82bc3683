"""How much of the log can show a leak at all, and why the rest can't."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvaudit.findings import NotExaminable


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What of the log was examinable.

    Attributes:
        expected: Requests that should carry an answer.
        examined: Those whose answer can be read.
        missing: Why the others can't, counted.
        apart: Records that by kind hold no answer, counted.
        promptless: Examined requests whose own prompt can't be read, counted: text that came out
            of it can't be recognised anywhere.
    """

    expected: int
    examined: int
    missing: tuple[NotExaminable, ...]
    apart: tuple[NotExaminable, ...]
    promptless: tuple[NotExaminable, ...] = ()

    @property
    def prompt_share(self) -> float | None:
        """Requests with a readable prompt, of those expected; None when nothing was expected."""
        missing = sum(item.count for item in self.promptless)
        return 1 - missing / self.expected if self.expected else None

    @property
    def share(self) -> float | None:
        """Examined of expected; None when nothing was expected."""
        return self.examined / self.expected if self.expected else None


def coverage_of(rows: Sequence[tuple[str, str, int]]) -> Coverage:
    """Return the coverage from counted (class, reason, requests) rows."""
    missing, apart, promptless = (
        tuple(NotExaminable(reason=why, count=n) for kind, why, n in rows if kind == wanted)
        for wanted in ("missing", "apart", "no prompt")
    )
    examined = sum(n for kind, _, n in rows if kind == "examined")
    return Coverage(
        expected=examined + sum(item.count for item in missing),
        examined=examined,
        missing=missing,
        apart=apart,
        promptless=promptless,
    )

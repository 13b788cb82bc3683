"""`kvaudit trace`: one request followed both ways, source and sink side by side."""

import difflib
import shutil
import sys
from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Any

from typer import Argument

from kvaudit.cli.flags import Json, Quiet, Reason, Reveal, Run
from kvaudit.cli.opening import opened
from kvaudit.cli.saving import note_reveal, refuse_lone_reason
from kvaudit.cli.terminal import display_width, escape, has_colour, write_json, write_text
from kvaudit.errors import ConfigError

WIDTH_MIN, WIDTH_MAX = 60, 160
GAP = "  |  "
NEAR_SEARCHED_MAX = 20_000
ELSEWHERE_TOLD = 10
_MARK_ON, _MARK_OFF = "\x1b[7m", "\x1b[27m"
_PLAIN_ON, _PLAIN_OFF = "⟦", "⟧"

RequestId = Annotated[str, Argument(metavar="REQUEST_ID", help="A request, as reports name it.")]


def trace(
    run: Run,
    request_id: RequestId,
    reveal: Reveal = False,
    reason: Reason = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Tell where the text of one answer came from, and where that of its prompt went."""
    from kvaudit.store.folder import RunFolder
    from reports.redact import Redactor, redaction_key
    from reports.trace_view import trace_json, trace_of

    refuse_lone_reason(reason, reveal=reveal)
    folder = RunFolder.open(run)
    with opened(folder) as reader:
        judged = reader.judged()
        request_id, records = _with_request(reader, judged, request_id)
        secret = reader.secret()
    if reveal:  # before anything is shown
        note_reveal(folder, f"trace {request_id}", reason)
    redactor = Redactor(key=redaction_key(secret) if secret else b"", reveal=reveal)
    made = trace_of(judged, records, request_id, redactor)
    if json:
        write_json(trace_json(made, reveal=reveal))
        return 0
    width = min(max(shutil.get_terminal_size((100, 24)).columns, WIDTH_MIN), WIDTH_MAX)
    for line in _lines(made, width, is_quiet=quiet):
        write_text(f"{line}\n")
    return 0


def _with_request(reader: Any, run: Any, request_id: str) -> tuple[str, dict[str, Any]]:
    """Return the request's own id and the records of the evidence, its own among them.

    Args:
        reader: A RunReader.
        run: Its judged run.
        request_id: As the log has it, or as a report or a table shows it.

    Raises:
        ConfigError: There is no such request.
    """
    records: dict[str, Any] = reader.records_of(run)
    if request_id not in records and run.command == "scan":
        records |= reader.scanned_records([request_id])
    if request_id in records:
        return request_id, records
    known = sorted({*records, *reader.scanned_ids()})
    meant = [held for held in known if request_id in _shown_forms(held)]
    if len(meant) == 1:
        return meant[0], records | ({} if meant[0] in records else reader.scanned_records(meant))
    near = difflib.get_close_matches(request_id, known[:NEAR_SEARCHED_MAX], n=1, cutoff=0.5)
    raise ConfigError(
        f"there is no request `{request_id}` in this run",
        hint=f"did you mean `{near[0]}`?"
        if near
        else "`kvaudit query RUN requests` lists them, `kvaudit query RUN exposures` those exposed",
    )


def _shown_forms(request_id: str) -> set[str]:
    """Return every way in which a report, a table or an error of ours shows this id."""
    from reports import neutral

    if request_id.isascii() and request_id.isprintable() and len(request_id) < neutral.NAME_CHARS:
        return {neutral.name(request_id)}
    return {neutral.name(request_id), neutral.value(request_id), escape(request_id)}


def _lines(made: Any, width: int, *, is_quiet: bool) -> Iterator[str]:
    yield f"request {_shown_id(made.request_id)} of tenant {made.tenant}: {made.outcome}"
    if made.sent_at:
        yield f"  sent {made.sent_at}"
    for name, value in made.facts:
        yield f"  {name}: {value}"
    if not made.findings:
        yield ""
        yield "No finding says that its answer holds another tenant's text or traces."
    for held in made.findings:
        yield from _finding_lines(held, width)
    if made.below:
        yield ""
        yield "Evidence below its rule's threshold"
        for rule, why in made.below:
            yield f"  {rule}: {why}"
    yield ""
    if made.reached:
        yield f"Text of this request is in {_answers(made.reached_count)} of other tenants"
        yield from _reached_lines(made.reached)
    elif not is_quiet:
        yield "No finding says that text of this request is in another answer."


def _finding_lines(held: Any, width: int) -> Iterator[str]:
    yield ""
    yield f"{held.rule} {held.name} ({held.severity}, {held.kind})"
    yield f"  {held.sentence}"
    for sentence in held.why:
        yield f"  {sentence}"
    yield f"  {held.chance[:1].upper()}{held.chance[1:]}."
    for name, value in held.details:
        yield f"  {name}: {value}"
    if held.sink is not None or held.source is not None:
        yield ""
        yield from _side_by_side(held.source, held.sink, width)
    if held.elsewhere:
        yield ""
        yield f"  Text of the same source is also in {_answers(len(held.elsewhere))}"
        yield from _reached_lines(held.elsewhere)


def _shown_id(request_id: str) -> str:
    from reports import neutral

    return neutral.name(request_id)


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


def _reached_lines(reached: Any) -> Iterator[str]:
    for held in reached[:ELSEWHERE_TOLD]:
        sent = f", sent {held.sent_at}" if held.sent_at else ""
        shown = f"{_shown_id(held.request_id)} of tenant {held.tenant}{sent}"
        yield f"    {shown}: {', '.join(held.rules)}"
    if len(reached) > ELSEWHERE_TOLD:
        yield f"    ... and {len(reached) - ELSEWHERE_TOLD} more; --json tells them"


def _side_by_side(source: Any, sink: Any, width: int) -> Iterator[str]:
    """Yield the source on the left and the sink on the right, the shared span marked."""
    column = (width - 2 - len(GAP)) // 2
    left = _column(source, "Source: not visible", column)
    right = _column(sink, "Answer: not kept", column)
    for first, second in zip_longest(left, right, fillvalue=("", 0)):
        yield f"  {first[0]}{' ' * (column - first[1])}{GAP}{second[0]}".rstrip()


def _column(view: Any, missing: str, width: int) -> list[tuple[str, int]]:
    """Return lines with their widths: the label, a rule, the text."""
    if view is None:
        return [(missing[:width], min(len(missing), width))]
    cells = [(char, False) for char in view.label]
    lines = [*_wrapped(cells, width), ("-" * width, width)]
    if view.missing:
        return [*lines, *_wrapped([(char, False) for char in view.missing], width)]
    text = [(char, piece.mark == "shared") for piece in view.pieces for char in escape(piece.text)]
    if has_colour(sys.stdout):
        return [*lines, *_wrapped(text, width)]
    return [*lines, *_wrapped(_bracketed(text), width)]


def _bracketed(cells: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Mark the shared span by brackets, where no terminal can show it."""
    made: list[tuple[str, bool]] = []
    inside = False
    for char, is_shared in cells:
        if is_shared != inside:
            made += [(mark, False) for mark in (_PLAIN_ON if is_shared else _PLAIN_OFF)]
            inside = is_shared
        made.append((char, False))
    return [*made, *((mark, False) for mark in _PLAIN_OFF * inside)]


def _wrapped(cells: list[tuple[str, bool]], width: int) -> Iterator[tuple[str, int]]:
    """Yield lines of at most `width` columns, broken at spaces where one is near."""
    at = 0
    while at < len(cells):
        end, taken = at, 0
        while end < len(cells) and taken + display_width(cells[end][0]) <= width:
            taken += display_width(cells[end][0])
            end += 1
        if end < len(cells):
            space = next((back for back in range(end, at + (end - at) // 2, -1)
                          if cells[back][0] == " "), end)  # fmt: skip
            end = max(space, at + 1)
        line = cells[at:end]
        yield _painted(line), sum(display_width(char) for char, _ in line)
        at = end + (end < len(cells) and cells[end][0] == " ")


def _painted(line: list[tuple[str, bool]]) -> str:
    made, inside = [], False
    for char, is_shared in line:
        if is_shared != inside:
            made.append(_MARK_ON if is_shared else _MARK_OFF)
            inside = is_shared
        made.append(char)
    return "".join(made) + _MARK_OFF * inside

"""Which words of an answer the own context already holds: not foreign, whatever they look like."""

import re

from kvaudit.findings import Span

OWN_RUN_WORDS = 3  # fewer words in a row stand in any two texts
SEARCHED_CHARS = 400  # of the answer, on either side of the shared span
CONTEXT_CHARS_MAX = 200_000  # of the own context; longer ones are searched at both ends

_WORD = re.compile(r"\S+")


def own_spans(answer: str, own_context: str, around: Span) -> tuple[Span, ...]:
    """Return runs of at least `OWN_RUN_WORDS` words near `around` that the own context holds."""
    left = max(around.start - SEARCHED_CHARS, 0)
    right = min(around.end + SEARCHED_CHARS, len(answer))
    context = _folded(_bounded(own_context))
    words = list(_WORD.finditer(answer, left, right))[: SEARCHED_CHARS * 2]
    spans: list[Span] = []
    for index in range(len(words) - OWN_RUN_WORDS + 1):
        run = words[index : index + OWN_RUN_WORDS]
        if _folded(" ".join(word.group() for word in run)) in context:
            start, end = run[0].start(), run[-1].end()
            if spans and start <= spans[-1].end + 1:
                spans[-1] = Span(start=spans[-1].start, end=end)
            else:
                spans.append(Span(start=start, end=end))
    return tuple(spans)


def _bounded(text: str) -> str:
    if len(text) <= CONTEXT_CHARS_MAX:
        return text
    half = CONTEXT_CHARS_MAX // 2
    return f"{text[:half]}\n{text[-half:]}"


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()

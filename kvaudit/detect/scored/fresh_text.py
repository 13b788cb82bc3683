"""The part of each context that its conversation has not sent before.

A chat resends its whole past with every turn, so most of a log is text that was there already. A
rule that asks who held something first needs only the rest, and a little before it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvaudit.detect.semijoin.texts import TextSource

COLUMNS = ("row", "organisation", "conversation", "start_us", "context")


class Fresh(NamedTuple):
    """One request's new text.

    Attributes:
        row, organisation, start_us: Of the request.
        context: All that it carries.
        begin: Where the new text begins; 0 for the first of a conversation.
    """

    row: int
    organisation: int
    start_us: int | None
    context: str
    begin: int


def fresh_contexts(source: TextSource) -> Iterator[Fresh]:
    """Yield every context in order, with the place up to which the request before held it too.

    Only an earlier request of the same conversation counts, and only if both tell when they began.
    """
    last_owner: int | None = None
    last_conversation: int | None = None
    last_start: int | None = None
    last_text = ""
    for frame in source.batches(COLUMNS):
        for row, owner, conversation, start, context in frame.iter_rows():
            is_later = (
                conversation is not None
                and (owner, conversation) == (last_owner, last_conversation)
                and start is not None
                and last_start is not None
                and last_start <= start
            )
            begin = common_prefix(last_text, context) if is_later else 0
            yield Fresh(row, owner, start, context, begin)
            last_owner, last_conversation, last_start = owner, conversation, start
            last_text = context


def common_prefix(one: str, other: str) -> int:
    """Return how many characters two texts begin with alike."""
    if other.startswith(one):
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

"""Which rows are one request: retries apart, layers together, duplicates folded.

Never two groups from one row, and never one group from two answers of one source: a retry is a
request of its own, and its second answer is no leak of the first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kvaudit.forensics.fields import bare_id

# Source of a tenant that was read off an id's shape: anything that names one outright goes before.
GUESSED_FROM_ID = "custom_id"
_LAYER_RANK = {"client": 0, "gateway": 1, "batch": 2, "router": 3, "dataset": 4, "engine": 5}
_TENANT_RANK = {"gateway": 0, "router": 1, "client": 2, "batch": 3, "engine": 4, "dataset": 5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the grouping needs to know of one row."""

    part: str
    record_id: str
    source_file: str
    source_layer: str
    clock_id: str
    is_partner: bool
    request_id: str | None
    tenant_id: str | None
    tenant_id_source: str | None
    organisation: str | None
    conversation_id: str | None
    start_us: int | None
    time_basis: str
    order_key: int
    input_digest: str | None
    output_digest: str | None

    @property
    def clock(self) -> tuple[str, str]:
        """The clock that its times were read from."""
        return self.source_file, self.clock_id


@dataclass(slots=True)
class Group:
    """Rows that are one request.

    Attributes:
        rows: All of them, the primary first.
        attempt: 1, or the number of the retry.
    """

    rows: list[Seen]
    attempt: int = 1

    @property
    def primary(self) -> Seen:
        """The row that stands for the request."""
        return self.rows[0]

    @property
    def tenant(self) -> tuple[str | None, str | None, str | None]:
        """(tenant, where it came from, organisation): the primary's own, else the best layer's."""
        named = [row for row in self.rows if row.tenant_id is not None]
        if not named:
            return None, None, None
        outright = [row for row in named if row.tenant_id_source != GUESSED_FROM_ID]
        named = outright or named
        if self.primary in named:
            return self.primary.tenant_id, self.primary.tenant_id_source, self.primary.organisation
        best = min(named, key=lambda row: (_TENANT_RANK.get(row.source_layer, 9), row.record_id))
        return best.tenant_id, f"{best.source_file}: {best.tenant_id_source}", best.organisation

    @property
    def conversation(self) -> str | None:
        """The conversation that any of the rows names, the primary's first."""
        return next((row.conversation_id for row in self.rows if row.conversation_id), None)


@dataclass(slots=True)
class _Unit:
    """Rows of one source that are one request."""

    rows: list[Seen] = field(default_factory=list)

    def takes(self, row: Seen) -> bool:
        """Whether the row is the same request: equal id, and no second text on either side."""
        first = self.rows[0]
        if bare_id(row.request_id) != bare_id(first.request_id):
            return False
        inputs = {found.input_digest for found in (*self.rows, row) if found.input_digest}
        outputs = {found.output_digest for found in (*self.rows, row) if found.output_digest}
        return len(inputs) <= 1 and len(outputs) <= 1

    @property
    def output_digest(self) -> str | None:
        return next((row.output_digest for row in self.rows if row.output_digest), None)

    @property
    def input_digest(self) -> str | None:
        return next((row.input_digest for row in self.rows if row.input_digest), None)

    @property
    def request_ids(self) -> set[str]:
        return {found for row in self.rows if (found := bare_id(row.request_id))}


def groups_of(rows: Sequence[Seen]) -> Iterator[Group]:
    """Yield the requests among rows that share ids."""
    by_file: dict[str, list[_Unit]] = {}
    for row in rows:
        units = by_file.setdefault(row.source_file, [])
        fitting = next((unit for unit in units if unit.takes(row)), None)
        if fitting is None:
            units.append(_Unit([row]))
        else:
            fitting.rows.append(row)
    anchors_file = max(by_file, key=lambda name: (len(by_file[name]), name))
    anchors = by_file.pop(anchors_file)
    merged = [[*unit.rows] for unit in anchors]
    for name in sorted(by_file):
        taken: set[int] = set()
        for unit in by_file[name]:
            index = _anchor_for(unit, anchors, taken)
            if index is None:
                merged.append([*unit.rows])
            else:
                taken.add(index)
                merged[index].extend(unit.rows)
    yield from _numbered([_primary_first(found) for found in merged])


def _anchor_for(unit: _Unit, anchors: list[_Unit], taken: set[int]) -> int | None:
    free = [index for index in range(len(anchors)) if index not in taken]
    if not free:
        return None

    def distance(index: int) -> tuple[bool, bool, int]:
        anchor = anchors[index]
        same_text = unit.output_digest is not None and unit.output_digest == anchor.output_digest
        a, b = unit.rows[0].start_us, anchor.rows[0].start_us
        apart = abs(a - b) if a is not None and b is not None else 2**62
        return not unit.request_ids & anchor.request_ids, not same_text, apart

    return min(free, key=distance)


def _primary_first(rows: list[Seen]) -> list[Seen]:
    return sorted(
        rows,
        key=lambda row: (
            row.is_partner, row.output_digest is None, row.input_digest is None,
            _LAYER_RANK.get(row.source_layer, 9), row.order_key, row.record_id,
        ),
    )  # fmt: skip


def _numbered(found: Iterable[list[Seen]]) -> Iterator[Group]:
    """Number the attempts: groups of one prompt in one source, in order of time."""
    ordered = sorted(
        (Group(rows) for rows in found),
        key=lambda group: (group.primary.source_file, group.primary.input_digest or "",
                           group.primary.start_us or 0, group.primary.order_key),
    )  # fmt: skip
    for (_, digest), same in groupby(
        ordered, key=lambda g: (g.primary.source_file, g.primary.input_digest)
    ):
        for number, group in enumerate(same, start=1):
            group.attempt = number if digest is not None else 1
            yield group

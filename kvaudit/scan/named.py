"""Rows of the table as evidence names them: ids, tenants, times, and texts with their places."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvaudit.findings import Json
from kvaudit.scan.texts import Side, TableTexts, answer_side, context_side

_NAMES = ("record_id", "request_id", "tenant_id")
_COLUMNS = (
    *_NAMES, "start_time", "input_text", "context_text", "retrieved_items", "input_gaps",
    "output_text", "output_reasoning_text", "output_tool_text", "output_gaps",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class NamedRow:
    """One request with its texts."""

    request_id: str
    record_id: str
    tenant: str
    start_us: int | None
    context: Side
    answer: Side

    def details(self) -> dict[str, Json]:
        """Return what every evidence tells of its sink."""
        return {"record_id": self.record_id, "start_us": self.start_us}

    def source_details(self) -> dict[str, Json]:
        """Return what evidence tells of its source."""
        return {"source_record_id": self.record_id, "source_start_us": self.start_us}


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Some rows whole, and the names of some more."""

    _whole: Mapping[int, NamedRow]
    _names: Mapping[int, tuple[str, str]]

    @classmethod
    def of(cls, texts: TableTexts, whole: Iterable[int], others: Iterable[int]) -> "NamedRows":
        """Read rows of the table."""
        return cls(
            {at: _row(row) for at, row in texts.raw(sorted(set(whole)), _COLUMNS)},
            {
                at: (row["request_id"] or row["record_id"], row["tenant_id"])
                for at, row in texts.raw(sorted(set(others)), _NAMES)
            },
        )

    def whole(self, row: int) -> NamedRow:
        """Return one of the whole rows."""
        return self._whole[row]

    def others(self, rows: Sequence[int]) -> list[Json]:
        """Return further requests as `details.other_sources` has them."""
        return [{"request_id": self._names[row][0], "tenant": self._names[row][1]} for row in rows]


def _row(row: Mapping[str, Any]) -> NamedRow:
    moment = row["start_time"]
    return NamedRow(
        request_id=row["request_id"] or row["record_id"],
        record_id=row["record_id"],
        tenant=row["tenant_id"],
        start_us=None if moment is None else round(moment.timestamp() * 1e6),
        context=context_side(row),
        answer=answer_side(row),
    )

"""SGLang `ReqTimeStats` lines: lengths, durations and transferred bytes of each leg, no text."""

import re
from collections.abc import Iterable, Iterator

from kvaudit.forensics.fields import float_of, int_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow, TimeBasis
from kvaudit.forensics.sglang import line_moment
from kvaudit.forensics.times import moment_of

_LINE = re.compile(r"Req ?Time ?Stats\((?P<head>[^)]{1,600})\):? ?(?P<tail>.*)\Z")
_PAIR = re.compile(r"([a-z_ ]{2,40})=\s*(-?[\d.]+(?:e[+-]?\d+)?) ?(?:GB/s|MB|ms|s)?(?=,|\s|\Z)")
_MARKS = ("ReqTimeStats(", "Req Time Stats(")


def _is_stats(line: str) -> bool:
    return any(mark in line[:160] for mark in _MARKS)


def _sniff(sample: Sample) -> float:
    found = sum(_is_stats(line) for line in sample.lines)
    return 0.6 if found else 0.0


def _pairs(text: str) -> dict[str, str]:
    return {name.strip().replace(" ", "_"): value for name, value in _PAIR.findall(text)}


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        if not _is_stats(record.line):
            continue
        moment, rest = line_moment(record.line)
        match = _LINE.search(rest)
        if match is None:
            context.damage("time-stats line is cut or damaged")
            continue
        head = {**_raw_pairs(match["head"])}
        tail = _pairs(match["tail"])
        entry = moment_of(float_of(tail.get("entry_time", tail.get("start_time"))))
        start = entry or moment
        forward = float_of(tail.get("forward_duration"))
        megabytes = float_of(tail.get("transfer_total"))
        leg = head.get("type")
        length = int_of(head.get("input_len"))
        spent_ms = sum(
            float_of(value) or 0.0 for name, value in tail.items() if name.endswith("_duration")
        )
        yield LogRow(
            source_row=record.row,
            source_byte_offset=record.offset,
            request_id=head.get("rid"),
            is_partner=leg != "unified" and leg != "decode",
            start_us=start.us if start else None,
            end_us=start.us + round(spent_ms * 1000) if start and entry else None,
            ttft_s=spent_ms / 1e3 if leg == "prefill" and forward is not None else None,
            time_precision_us=start.precision_us if start else None,
            time_basis=TimeBasis.ABSOLUTE
            if entry
            else TimeBasis.NAIVE
            if start
            else TimeBasis.NONE,
            provider="sglang",
            attempt=int_of(head.get("attempts")) or 1,
            input_tokens=length,
            output_tokens=int_of(head.get("output_len")),
            cached_tokens=int_of(head.get("cached_input_len")),
            leg=leg,
            room=head.get("bootstrap_room"),
            transfer_bytes=round(megabytes * 2**20) if megabytes is not None else None,
            fields=head,
        )


def _raw_pairs(text: str) -> dict[str, str]:
    made = {}
    for piece in text.split(","):
        name, mark, value = piece.partition("=")
        if mark:
            made[name.strip().replace(" ", "_")] = value.strip()
    return made


FORMAT = Format(
    name="sglang-time-stats",
    title="SGLang ReqTimeStats lines (no text)",
    shape=Shape.LINES,
    layer=Layer.ENGINE,
    sniff=_sniff,
    read=_read,
)

"""SGLang `--export-metrics-to-file`: prompt and numbers of each request, never its answer."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kvaudit.forensics.fields import first_text, mapping_of
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow
from kvaudit.forensics.sglang import Logged, logged_row


def _sniff(sample: Sample) -> float:
    return sample.share(
        lambda item: (
            "request_parameters" in item and ("finish_reason" in item or "e2e_latency" in item)
        )
    )


def _read(records: Iterable[RawRecord], context: ReadContext) -> Iterator[LogRow]:
    for record in records:
        obj = mapping_of(record.data.get("request_parameters"))
        rid = first_text(obj.get("rid"), record.data.get("id"))
        if rid is None:
            context.damage("record without rid")
            continue
        meta: Mapping[str, object] = {
            key: value for key, value in record.data.items() if key != "request_parameters"
        }
        logged = Logged(record.row, record.offset, rid)
        logged.take_obj(obj)
        logged.out = {"meta_info": meta}
        yield replace(logged_row(logged), fields={"obj": obj, **meta})


FORMAT = Format(
    name="sglang-metrics",
    title="SGLang per-request metrics export (no answers)",
    shape=Shape.OBJECTS,
    layer=Layer.ENGINE,
    sniff=_sniff,
    read=_read,
    keys=("request_parameters", "id", "finish_reason", "prompt_tokens", "e2e_latency"),
)

"""OpenTelemetry GenAI spans (OTLP/JSON): conventions 1.37 and later, content on the span."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from kvaudit.forensics.genai import span_row
from kvaudit.forensics.otlp import spans
from kvaudit.forensics.reader import Format, RawRecord, ReadContext, Sample, Shape
from kvaudit.forensics.row import Layer, LogRow


def _sniff(sample: Sample) -> float:
    return 0.9 * sample.share(
        lambda item: (
            ("resourceSpans" in item or "resource_spans" in item)
            and any(_is_genai(signal.attributes) for signal in spans(item))
        )
    )


def _is_genai(attributes: Mapping[str, Any]) -> bool:
    return any(key.startswith(("gen_ai.", "llm.")) for key in attributes)


def _read(records: Iterable[RawRecord], _: ReadContext) -> Iterator[LogRow]:
    for record in records:
        for signal in spans(record.data):
            if _is_genai(signal.attributes):
                yield span_row(record, signal)


FORMAT = Format(
    name="otel-span",
    title="OpenTelemetry GenAI spans (OTLP/JSON)",
    shape=Shape.OBJECTS,
    layer=Layer.CLIENT,
    sniff=_sniff,
    read=_read,
    keys=("resourceSpans",),
)

"""Every reader against a sample whose records were checked by hand."""

import json
from pathlib import Path

import pytest

from kvaudit.forensics.content import answer_text, prompt_text, reasoning_text, tool_text
from kvaudit.forensics.formats import read_file
from kvaudit.forensics.readers import FORMATS
from kvaudit.forensics.row import LogRow

DATA = Path(__file__).parents[1] / "data"
TRUTH = json.loads((DATA / "logs" / "TRUTH.json").read_text())["files"]

# File -> (format that sniffing finds, rows); a row more or less is a bug, so the counts are exact.
SAMPLES = {
    "logs/generic-proxy-chunks.jsonl": ("generic-chunks", 12),
    "logs/litellm-standard-logging.jsonl": ("litellm-payload", 12),
    "logs/otel-genai-spans.otlp.jsonl": ("otel-span", 12),
    "logs/vllm-server.log": ("vllm-server", 11),
    "logs/vllm-v0.9-server.log": ("vllm-server", 12),
    "real-logs/vllm-debug.log": ("vllm-server", 2),
}


def whole_output(row: LogRow) -> str:
    return "\n".join(
        [answer_text(row.output).text, reasoning_text(row.output), tool_text(row.output)]
    )


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_gives_exactly_its_requests(name: str) -> None:
    rows, context = read_file(DATA / name)
    assert len(rows) == SAMPLES[name][1]
    assert not context.damages
    assert len({row.request_id for row in rows}) == len(rows)
    assert all(row.start_us is not None for row in rows)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_samples_format_is_told_by_content_and_by_no_other_reader(name: str) -> None:
    from kvaudit.forensics.formats import head_of, sample_of, sniff
    from kvaudit.forensics.source import Progress, blocks

    sample = sample_of(head_of(blocks(DATA / name, Progress())))
    assert sniff(sample).format is FORMATS[SAMPLES[name][0]]
    scores = sorted((found.sniff(sample) for found in FORMATS.values()), reverse=True)
    assert len(scores) == 1 or scores[1] < scores[0] - 0.05


@pytest.mark.parametrize(
    "name", [n for n in SAMPLES if TRUTH.get(Path(n).name, {}).get("leaked_text")]
)
def test_the_leaked_text_is_in_the_contaminated_answer_and_in_its_source(name: str) -> None:
    truth = TRUTH[Path(name).name]
    rows, _ = read_file(DATA / name)
    by_id = {
        known: row for row in rows for known in (row.request_id, *row.correlation_ids) if known
    }
    sink, source = by_id[truth["contaminated_request_id"]], by_id[truth["source_request_id"]]
    assert truth["leaked_text"] in whole_output(sink)
    side = (
        prompt_text(source.input).text if truth["source_side"] == "prompt" else whole_output(source)
    )
    assert truth["source_text"] in side
    assert source.start_us is not None
    assert sink.end_us is not None
    assert source.start_us < sink.end_us
    assert sum(truth["leaked_text"] in whole_output(row) for row in rows) == 1

"""Every reader against a sample whose records were checked by hand."""

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.forensics.formats import head_of, read_file, sample_of, sniff
from kvaudit.forensics.load import ingest
from kvaudit.forensics.metadata import MetadataRules
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.readers import FORMATS
from kvaudit.forensics.source import Progress, blocks, find_files

DATA = Path(__file__).parents[1] / "data"
TRUTH = json.loads((DATA / "logs" / "TRUTH.json").read_text())["files"]

# File -> (format that sniffing finds, rows); a row more or less is a bug, so the counts are exact.
SAMPLES = {
    "logs/azure-apim-gatewayllmlog.jsonl": ("azure-llm-log", 12),
    "logs/azure-apim-gatewaylogs.jsonl": ("azure-gateway-logs", 12),
    "logs/azure-apim-gatewaylogs-bodies.jsonl": ("azure-gateway-logs", 12),
    "logs/azure-openai-requestresponse.json": ("azure-openai-diagnostics", 2),
    "logs/bedrock-invocation.json.gz": ("bedrock", 12),
    "logs/cloudflare-aig-api-logs.json": ("cloudflare-api", 12),
    "logs/cloudflare-aig-logpush-decrypted.jsonl": ("cloudflare-logpush", 12),
    "logs/cloudflare-aig-logpush-encrypted.jsonl": ("cloudflare-logpush", 3),
    "logs/envoy-ai-gateway-access.jsonl": ("envoy-access", 12),
    "logs/generic-proxy-chunks.jsonl": ("generic-chunks", 12),
    "logs/helicone-export.jsonl": ("helicone", 12),
    "logs/langfuse-observations.jsonl": ("langfuse", 12),
    "logs/litellm-spendlogs.jsonl": ("litellm-spendlogs", 12),
    "logs/litellm-standard-logging.jsonl": ("litellm-payload", 12),
    "logs/llama-server.log": ("llama-server", 12),
    "logs/openai-batch-input.jsonl": ("openai-batch", 13),
    "logs/openai-batch-output.jsonl": ("openai-batch", 13),
    "logs/openai-stored-completions.jsonl": ("openai-stored", 12),
    "logs/otel-genai-events-v1.36.otlp.jsonl": ("otel-event", 12),
    "logs/otel-genai-events.otlp.jsonl": ("otel-event", 12),
    "logs/otel-genai-spans.otlp.jsonl": ("otel-span", 12),
    "logs/sglang-log-requests.json.log": ("sglang-json", 12),
    "logs/sglang-log-requests.text.log": ("sglang-text", 12),
    "logs/sglang-request-metrics-20261004_05.log": ("sglang-metrics", 12),
    "logs/sglang-time-stats.log": ("sglang-time-stats", 4),
    "logs/vllm-production-stack-router.log": ("production-stack-router", 13),
    "logs/vllm-server.log": ("vllm-server", 11),
    "logs/vllm-v0.9-server.log": ("vllm-server", 12),
    "logs/wildchat-schema.jsonl": ("chat-dataset", 12),
    "real-logs/llamacpp.log": ("llama-server", 13),
    "real-logs/sglang-ok.log": ("sglang-text", 20),
    "real-logs/vllm-debug.log": ("vllm-server", 2),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_gives_exactly_its_requests(name: str) -> None:
    rows, context = read_file(DATA / name)
    assert len(rows) == SAMPLES[name][1]
    assert not context.damages
    ids = [(row.request_id, row.attempt) for row in rows if row.request_id is not None]
    assert len(set(ids)) == len(ids) >= len(rows) - 1


@pytest.mark.parametrize("name", SAMPLES)
def test_a_samples_format_is_told_by_content_and_by_no_other_reader(name: str) -> None:
    sample = sample_of(head_of(blocks(DATA / name, Progress())))
    assert sniff(sample).format is FORMATS[SAMPLES[name][0]]
    scores = sorted((found.sniff(sample) for found in FORMATS.values()), reverse=True)
    assert len(scores) == 1 or scores[1] < scores[0] - 0.05


# Sample -> what the truth's notes say it is to be joined with.
PARTNERS = {
    "azure-apim-gatewayllmlog.jsonl": "azure-apim-gatewaylogs.jsonl",
    "openai-batch-output.jsonl": "openai-batch-input.jsonl",
    "vllm-server.log": "vllm-production-stack-router.log",
    "sglang-log-requests.json.log": "envoy-ai-gateway-access.jsonl",
}
LEAKS = [name for name, truth in TRUTH.items() if truth["contaminated_request_id"]]


def table_of(tmp_path: Path, *names: str) -> pl.DataFrame:
    files = find_files([str(DATA / "logs" / name) for name in names])
    return pl.read_parquet(ingest(files, IngestOptions(), tmp_path, SimulatedClock()).table)


def shown(row: dict[str, Any]) -> str:
    columns = ("output_text", "output_reasoning_text", "output_tool_text")
    return "\n".join(row[name] or "" for name in columns)


def hashed(tenant: str) -> str:
    return hashlib.sha256(tenant.encode()).hexdigest()


@pytest.mark.parametrize("name", LEAKS)
def test_without_any_option_the_leak_of_a_sample_can_be_read_off_its_table(
    tmp_path: Path, name: str
) -> None:
    truth = TRUTH[name]
    table = table_of(tmp_path, name, *filter(None, [PARTNERS.get(name)])).filter("is_primary")
    by_id = {}
    for row in table.iter_rows(named=True):
        for known in (row["request_id"], *row["correlation_ids"]):
            by_id[known] = row
    sink, source = by_id[truth["contaminated_request_id"]], by_id[truth["source_request_id"]]
    assert truth["leaked_text"] in shown(sink)
    side = source["input_text"] if truth["source_side"] == "prompt" else shown(source)
    assert truth["source_text"] in side
    for row, tenant in ((sink, truth["contaminated_tenant"]), (source, truth["source_tenant"])):
        assert row["tenant_id"] in (tenant, f"team-{tenant}", f"sub-{tenant}", hashed(tenant))
    assert source["start_time"] < (sink["end_time"] or sink["start_time"])
    assert sum(truth["leaked_text"] in shown(row) for row in table.iter_rows(named=True)) == 1


@pytest.mark.parametrize(("name", "reason"), [
    ("cloudflare-aig-logpush-encrypted.jsonl", "answer is encrypted (cloudflare-logpush)"),
    ("envoy-ai-gateway-access.jsonl", "join partner: metadata of a router or gateway"),
    ("sglang-request-metrics-20261004_05.log", "no answer in the log (sglang-metrics)"),
])  # fmt: skip
def test_a_sample_that_can_never_show_a_leak_says_why(
    tmp_path: Path, name: str, reason: str
) -> None:
    table_of(tmp_path, name)
    rules = MetadataRules(tmp_path / "requests.parquet", tmp_path)
    rows = rules.coverage_rows()
    rules.close()
    assert not [row for row in rows if row[0] == "examined"]
    assert reason in {row[1] for row in rows}


def test_a_join_partner_adds_no_request(tmp_path: Path) -> None:
    alone = table_of(tmp_path, "sglang-log-requests.json.log").filter("is_primary")
    both = tmp_path / "both"
    both.mkdir()
    three = table_of(
        both, "sglang-log-requests.json.log", "envoy-ai-gateway-access.jsonl",
        "sglang-request-metrics-20261004_05.log",
    ).filter("is_primary")  # fmt: skip
    assert sorted(three["request_id"]) == sorted(alone["request_id"])
    assert three["service_instance_id"].null_count() == 0

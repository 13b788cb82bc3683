"""Foreign text in logs, from the log to the findings: what must be found, and what must not."""

import json
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.findings import AuditRun, Evidence, Finding, Kind, Verdict
from kvaudit.forensics.options import IngestOptions
from kvaudit.scan.config import ENGINES, ScanConfig
from kvaudit.scan.run import scan_logs


def _loaded(name: str) -> Any:
    spec = spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


CASES_FILE = _loaded("foreign_cases")
LEAKS, NEGATIVES, Case = CASES_FILE.LEAKS, CASES_FILE.NEGATIVES, CASES_FILE.Case
DATA = Path(__file__).parents[1] / "data"
TRUTH = json.loads((DATA / "logs" / "TRUTH.json").read_text())["files"]
PARTNERS = {
    "vllm-server.log": ["vllm-production-stack-router.log"],
    "azure-apim-gatewayllmlog.jsonl": ["azure-apim-gatewaylogs.jsonl"],
    "openai-batch-output.jsonl": ["openai-batch-input.jsonl"],
    "sglang-log-requests.json.log": [
        "envoy-ai-gateway-access.jsonl", "sglang-request-metrics-20261004_05.log",
    ],
}  # fmt: skip
HOLDING = sorted(name for name, truth in TRUTH.items() if truth.get("contaminated_request_id"))
DEV_CASES = [json.loads(line) for line in (DATA / "cases-dev.jsonl").read_text().splitlines()]
# So many of each stand for their kind in the default run; all of them are in the slow one.
FAST_FILES = {"litellm-spendlogs.jsonl", "llama-server.log", "vllm-server.log"}
FAST_CASES = {
    "chinese", "semantic-cache", "respelled-id", "victim-resends", "paraphrase",
    "two-tenants-one-stock-line", "public-document", "code-idioms", "scripture",
    "public-question", "retry-other-key",
}  # fmt: skip
TEXT_RULES = {"KVA201", "KVA202", "KVA203", "KVA204", "KVA205"}
FOUND = (Kind.EXPOSURE, Kind.MISDELIVERY)


@dataclass(frozen=True)
class Found:
    run: AuditRun

    @property
    def leaks(self) -> list[Finding]:
        return [finding for finding in self.run.findings if finding.kind in FOUND]

    @property
    def pairs(self) -> dict[str, set[str]]:
        made: dict[str, set[str]] = {}
        for finding in self.leaks:
            source = finding.evidence.source
            assert source is not None
            made.setdefault(finding.evidence.sink_request_id, set()).add(source.request_id)
        return made


def scan(folder: Path, logs: list[Path], *, engine: str | None = None, **options: Any) -> Found:
    (folder / "tmp").mkdir(exist_ok=True)
    config = ScanConfig(
        logs=tuple(map(str, logs)), min_coverage=0.0, ingest=IngestOptions(**options), engine=engine
    )
    return Found(
        scan_logs(config, folder, SimulatedClock(0), run_id="r", repeat="", started_unix_ns=0).run
    )


def scan_records(folder: Path, records: list[dict[str, Any]], **options: Any) -> Found:
    log = folder / "log.jsonl"
    log.write_text("\n".join(json.dumps(record) for record in records))
    return scan(folder, [log], **options)


def bare(request_id: str) -> str:
    return request_id.removeprefix("chatcmpl-")


def files_of(name: str) -> list[Path]:
    return [DATA / "logs" / file for file in (name, *PARTNERS.get(name, ()))]


def is_true_pair_alone(name: str, folder: Path) -> None:
    truth = TRUTH[name]
    found = scan(folder, files_of(name))
    pairs = {bare(sink): set(map(bare, held)) for sink, held in found.pairs.items()}
    sink, source = bare(truth["contaminated_request_id"]), bare(truth["source_request_id"])
    assert pairs == {sink: {source}}
    assert any(finding.kind is Kind.EXPOSURE for finding in found.leaks)
    assert found.run.verdict is Verdict.CONTAMINATED


@pytest.mark.parametrize("name", sorted(FAST_FILES))
def test_a_sample_log_has_the_true_pair_and_no_other(name: str, tmp_path: Path) -> None:
    is_true_pair_alone(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOLDING if name not in FAST_FILES])
def test_each_sample_log_has_the_true_pair_and_no_other(name: str, tmp_path: Path) -> None:
    is_true_pair_alone(name, tmp_path)


def test_the_samples_have_as_many_files_with_content_as_they_say() -> None:
    assert len(HOLDING) == 21


@pytest.mark.parametrize("case", DEV_CASES, ids=lambda case: str(case["case_id"]))
def test_a_case_of_the_public_reports_is_judged_as_expected(
    case: dict[str, Any], tmp_path: Path
) -> None:
    expected = case["expected"]
    found = scan_records(tmp_path, case["requests"])
    corrupt = {f.evidence.sink_request_id for f in found.run.findings if f.kind is Kind.CORRUPTION}
    if expected["verdict"] == "contaminated":
        assert set(found.pairs) == set(expected["flagged"])
        for sink, sources in found.pairs.items():
            assert sources <= set(expected["sources"][sink])
        assert found.run.verdict is Verdict.CONTAMINATED
    else:
        assert not found.leaks
        flagged = expected["flagged"] if expected["verdict"] == "corrupt_no_source" else []
        assert corrupt == set(flagged)
        assert (found.run.verdict is Verdict.CLEAN) == (not flagged)


def say_the_same(folder: Path, logs: list[Path]) -> None:
    """Scan by either engine; both must find, weigh and reject the same."""
    runs = []
    for engine in ENGINES:
        own = folder / engine
        own.mkdir()
        runs.append(scan(own, logs, engine=engine).run)
    first, second = runs
    assert first.findings == second.findings
    assert first.candidates == second.candidates
    assert (first.verdict, first.reasons) == (second.verdict, second.reasons)
    assert any(item.rule_id in TEXT_RULES for item in evidence_of(first)), "nothing was compared"


def evidence_of(run: AuditRun) -> list[Evidence]:
    return [*(finding.evidence for finding in run.findings), *run.candidates]


@pytest.mark.parametrize("name", sorted(FAST_FILES))
def test_both_engines_find_the_same_in_a_sample_log(name: str, tmp_path: Path) -> None:
    say_the_same(tmp_path, files_of(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in HOLDING if name not in FAST_FILES])
def test_both_engines_find_the_same_in_each_sample_log(name: str, tmp_path: Path) -> None:
    say_the_same(tmp_path, files_of(name))


def test_both_engines_find_the_same_in_the_cases_of_the_public_reports(tmp_path: Path) -> None:
    logs = []
    for case in DEV_CASES:
        # Cases know nothing of each other; in one log they would.
        for record in case["requests"]:
            record = record | {"request_id": f"{case['case_id']}-{record['request_id']}"}
            logs.append(json.dumps(record | {"tenant": f"{case['case_id']}-{record['tenant']}"}))
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(logs))
    say_the_same(tmp_path, [log])


@pytest.mark.slow
@pytest.mark.parametrize("case", DEV_CASES, ids=lambda case: str(case["case_id"]))
def test_both_engines_judge_a_case_of_the_public_reports_alike(
    case: dict[str, Any], tmp_path: Path
) -> None:
    runs = []
    for engine in ENGINES:
        own = tmp_path / engine
        own.mkdir()
        runs.append(scan_records(own, case["requests"], engine=engine).run)
    assert runs[0].findings == runs[1].findings
    assert runs[0].candidates == runs[1].candidates


def is_judged_right(case: Any, folder: Path) -> None:
    found = scan_records(folder, case.records())
    pairs = {
        int(sink.rsplit("-", 1)[1]): {int(held.rsplit("-", 1)[1]) for held in sources}
        for sink, sources in found.pairs.items()
    }
    assert set(pairs) == set(case.leaks)
    assert all(pairs[sink] <= sources for sink, sources in case.leaks.items())


CASES = [*LEAKS, *NEGATIVES]


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name in FAST_CASES], ids=lambda case: str(case.name)
)
def test_a_small_log_is_judged_right(case: Any, tmp_path: Path) -> None:
    is_judged_right(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in FAST_CASES], ids=lambda case: str(case.name)
)
def test_each_small_log_is_judged_right(case: Any, tmp_path: Path) -> None:
    is_judged_right(case, tmp_path)


def test_what_passes_says_where_both_sides_stand(tmp_path: Path) -> None:
    case = next(case for case in LEAKS if case.name == "tool-argument")
    (finding,) = scan_records(tmp_path, case.records()).leaks
    item = finding.evidence
    assert item.sink_span is not None
    assert item.source is not None
    assert item.source.span is not None
    prompt = case.requests[0]["prompt"]
    assert prompt[item.source.span.start : item.source.span.end] == item.excerpt
    assert item.details["expected_accidents"] <= 0.01
    assert item.details["reason"]


def test_a_log_without_tenants_says_what_it_can_not_do(tmp_path: Path) -> None:
    records = [{k: v for k, v in r.items() if k != "tenant"} for r in LEAKS[0].records()]
    found = scan_records(tmp_path, records)
    assert not found.leaks
    assert found.run.verdict is Verdict.INCONCLUSIVE
    assert "no record names a tenant" in found.run.reasons[0]


def test_without_times_the_text_is_found_and_no_decoy_is_counted(tmp_path: Path) -> None:
    records = [{k: v for k, v in r.items() if not k.startswith("ts_")} for r in LEAKS[0].records()]
    found = scan_records(tmp_path, records)
    assert found.pairs == {"verbatim-2": {"verbatim-0"}}
    assert found.leaks[0].evidence.details["reason"] == "no usable order in time"


def test_two_names_of_one_organisation_are_not_foreign(tmp_path: Path) -> None:
    found = scan_records(tmp_path, LEAKS[0].records(), same_tenants=(("a", "c"),))
    assert not found.leaks


def test_a_source_on_another_replica_is_left_out_when_replicas_are_named(tmp_path: Path) -> None:
    records = LEAKS[0].records()
    for number, record in enumerate(records):
        record["pod"] = f"pod-{number}"
    assert not scan_records(tmp_path, records, replica_field="pod").leaks
    for record in records:
        record["pod"] = "pod-0"
    again = tmp_path / "again"
    again.mkdir()
    assert scan_records(again, records, replica_field="pod").leaks


def test_a_text_that_was_cut_or_masked_is_not_joined_across_the_gap(tmp_path: Path) -> None:
    records = LEAKS[0].records()
    records[0]["prompt"] = "The buyer, Mirela Stoi[REDACTED:NAME], keeps the old slipway crane."
    records[2]["response"] = "Mirela Stoi[REDACTED:NAME], keeps nothing at all of it."
    assert not scan_records(tmp_path, records).leaks

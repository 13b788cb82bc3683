"""`kvaudit scan` from the command line to the run folder."""

import json
import stat
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from kvaudit.cli.main import run
from kvaudit.store.folder import RunFolder
from kvaudit.store.reading import open_run

DATA = Path(__file__).parents[1] / "data" / "logs"
BENCH = Path(__file__).parents[1] / "bench" / "incident_log.py"


def kvaudit(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = run([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    spec = spec_from_file_location("incident_log", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    log = module.IncidentLog(9, rows=4_000, right=200, refused=40, response_cache=40, truncated=20)
    path = tmp_path_factory.mktemp("logs") / "gateway.jsonl"
    module.write_log(path, log)
    return path, log


MAP = ("--map", "start=start_time", "--map", "end=end_time")


def test_the_incident_is_contaminated_with_the_pools_size(
    incident: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = incident
    out = tmp_path / "run"
    status, shown, _ = kvaudit(
        capsys, "scan", path, *MAP, "--pool-tokens", 681_280, "--out", out, "--json", "--quiet"
    )
    report = json.loads(shown)
    assert status == 1
    assert report["verdict"] == "contaminated"
    assert report["command"] == "scan"
    assert "independent families on one request: accounting (KVA302" in report["reasons"][0]
    assert "timing (KVA303) (155 answers)" in report["reasons"][0]
    assert {finding["sink"]["request_id"] for finding in report["findings"]} == log.planted_ids
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o600 for p in out.iterdir() if p.is_file())
    assert json.loads((out / "report.json").read_text())["verdict"] == "contaminated"
    assert (out / "report.html").stat().st_size > 0

    for name in ("over-capacity-200s", "impossible-first-tokens"):
        _, rows, _ = kvaudit(capsys, "query", out, name, "--json")
        passed = [row for row in json.loads(rows)["items"] if row.get("passed", True)]
        assert {row["request_id"] for row in passed} == log.planted_ids
    _, rows, _ = kvaudit(capsys, "query", out, "replicas-compared", "--json")
    worst = json.loads(rows)["items"][0]
    assert (worst["replica"], worst["with_findings"]) == ("pd-0", 155)
    _, rows, _ = kvaudit(capsys, "query", out, "timeline-by-hour", "--json")
    assert sum(row["with_findings"] for row in json.loads(rows)["items"]) == 155


# Details that hold text of a tenant; every other string is a word, a name or an id of ours.
TENANT_TEXT_KEYS = {"first"}


def own_words(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        for name, held in value.items():
            yield from own_words(held, name)
    elif isinstance(value, list):
        for held in value:
            yield from own_words(held, key)
    elif isinstance(value, str) and key not in TENANT_TEXT_KEYS:
        yield key, value


@pytest.mark.parametrize("pool", [(), ("--pool-tokens", 681_280)], ids=["estimated", "given"])
def test_no_word_of_our_own_is_redacted_in_the_findings_of_a_scan(
    pool: tuple[object, ...],
    incident: tuple[Path, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "run"
    _, shown, _ = kvaudit(
        capsys, "scan", incident[0], *MAP, *pool, "--out", out, "--json", "--quiet"
    )
    with open_run(RunFolder.open(out)) as reader:
        run = reader.judged()
    seen = set()
    for stored, told in zip(run.findings, json.loads(shown)["findings"], strict=True):
        words = list(own_words(dict(stored.evidence.details)))
        assert words == list(own_words(told["details"]))
        seen |= set(words)
    keys = {key for key, _ in seen}
    assert "record_id" in keys
    assert not pool or ("capacity_source", "given") in seen


def test_without_the_pools_size_one_family_is_not_enough(
    incident: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = incident
    status, shown, _ = kvaudit(
        capsys, "scan", path, *MAP, "--out", tmp_path / "run", "--json", "--quiet"
    )
    report = json.loads(shown)
    assert status == 3
    assert {finding["sink"]["request_id"] for finding in report["findings"]} == log.planted_ids
    assert report["reasons"][0].startswith("one family only: KVA303 (155 answers)")


def test_engine_and_router_logs_are_scanned_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = [DATA / "vllm-server.log", DATA / "vllm-production-stack-router.log"]
    status, shown, said = kvaudit(capsys, "scan", *logs, "--out", tmp_path / "run", "--json")
    report = json.loads(shown)
    assert status == 1
    assert report["counts"]["tenants"] == 4
    assert report["counts"]["requests"] == 11
    assert "taken from the clock of `vllm-production-stack-router.log`" in said
    skew = report["target"]["clocks"]["skew_ms"]
    assert 900 <= skew <= 3_000
    status, rows, _ = kvaudit(capsys, "query", tmp_path / "run", "coverage", "--json")
    assert status == 0
    assert {row["source_format"] for row in json.loads(rows)["items"]} == {
        "vllm-server", "production-stack-router",
    }  # fmt: skip


def test_logs_without_a_tenant_say_how_to_name_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown, _ = kvaudit(
        capsys, "scan", DATA / "vllm-server.log", "--out", tmp_path / "run", "--json", "--quiet"
    )
    assert status == 3
    assert "--tenant-field" in json.loads(shown)["reasons"][0]


SECRET = "The access phrase of the Lindqvist account is ORCHID-7719-KESTREL, kept by Marta."


def two_tenants() -> list[dict[str, Any]]:
    """Thirty requests of two tenants; the prompt of one comes out of the answer of another."""
    rows = [
        {
            "request_id": f"r{at}", "tenant": ("acme", "globex")[at % 2],
            "prompt": f"Tell me of number {at * 37}.", "output": f"It is {at * 41} of old.",
            "start_time": f"2026-08-01T10:{at:02}:00Z", "end_time": f"2026-08-01T10:{at:02}:05Z",
        }
        for at in range(30)
    ]  # fmt: skip
    rows[3]["prompt"] += f" {SECRET}"
    rows[20]["output"] += f" {SECRET}"
    return rows


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda rows: [row | {"tenant": "acme"} for row in rows], "every record is of one"),
        (lambda rows: [row | {"org": "one"} for row in rows], "every record is of one"),
        (lambda rows: [row | {"tenant": None} if at == 3 else row for at, row in enumerate(rows)],
         "only 96.7% of 30 answers are examinable"),
        (lambda rows: [row | {"prompt": None} if at == 3 else row for at, row in enumerate(rows)],
         "only 96.7% of 30 prompts can be read"),
    ],
    ids=["one tenant", "one organisation", "source without tenant", "source without prompt"],
)  # fmt: skip
def test_a_leak_that_what_is_missing_hides_is_not_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, reason: str
) -> None:
    def scanned(rows: list[dict[str, Any]], name: str) -> tuple[int, dict[str, Any]]:
        log = tmp_path / f"{name}.jsonl"
        log.write_text("\n".join(json.dumps(row) for row in rows))
        status, shown, _ = kvaudit(
            capsys, "scan", log, "--out", tmp_path / name, "--json", "--quiet"
        )
        return status, json.loads(shown)

    assert scanned(two_tenants(), "whole")[0] == 1
    status, report = scanned(change(two_tenants()), "hidden")
    assert (status, report["verdict"]) == (3, "inconclusive")
    assert any(reason in held for held in report["reasons"])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda log: log.write_text(log.read_text()[:-40] + "\n" + "{" * 30 + "\n"), "damaged"),
        (lambda log: log.with_name("b.bin").write_bytes(bytes(range(256)) * 99), "1 of 2 files"),
    ],
    ids=["damaged lines", "a file that is no log"],
)
def test_what_could_not_be_read_bars_a_clean_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, reason: str
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    rows = [row | {"prompt": f"Hello {at}", "output": f"Good day {at}"}
            for at, row in enumerate(two_tenants())]  # fmt: skip
    (logs / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    for name, wanted in (("whole", 0), ("spoilt", 3)):
        status, shown, _ = kvaudit(
            capsys, "scan", logs, "--out", tmp_path / name, "--json", "--quiet"
        )
        assert status == wanted, shown
        spoil(logs / "a.jsonl")
    assert any(reason in held for held in json.loads(shown)["reasons"])


def test_encrypted_answers_are_listed_as_not_examinable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = DATA / "cloudflare-aig-logpush-encrypted.jsonl"
    status, shown, _ = kvaudit(capsys, "scan", log, "--out", tmp_path / "run", "--json", "--quiet")
    report = json.loads(shown)
    assert status == 3
    assert report["not_examinable"] == [
        {"reason": "answer is encrypted (cloudflare-logpush)", "count": 3}
    ]


@pytest.mark.parametrize(("arguments", "words"), [
    (["nowhere/*.jsonl"], "names no file"),
    (["--format", "litelm-payload"], "did you mean `litellm-payload`"),
    (["--window", "soon"], "is no window"),
    (["--assume-tz", "Mars/Olympus"], "there is no time zone"),
    (["--same-tenant", "a"], "has no two sides"),
    (["--pool-tokens", "0"], "a capacity is above 0"),
    (["--min-coverage", "2"], "choose a share"),
    (["--engine", "pollars"], "did you mean `polars`"),
    (["--canaries", "missing.json"], "can't be read"),
    (["--tenant-field", "a~("], "is no regular expression"),
    (["--resume"], "needs the run to go on with"),
])  # fmt: skip
def test_bad_input_is_told_with_its_cure_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    log = [] if arguments[0].startswith("nowhere") else [DATA / "litellm-standard-logging.jsonl"]
    status, shown, said = kvaudit(capsys, "scan", *log, *arguments)
    assert status == 2
    assert shown == ""
    assert words in said
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_unreadable_log_leaves_no_run_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "notes.txt"
    log.write_text("nothing that is a log\n" * 5)
    out = tmp_path / "run"
    status, _, said = kvaudit(capsys, "scan", log, "--out", out)
    assert status == 2
    assert "no record could be read" in said
    assert not out.exists()


def test_a_dry_run_says_what_the_logs_are_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, shown, _ = kvaudit(capsys, "scan", DATA, "--dry-run", "--json")
    report = json.loads(shown)
    assert status == 0
    found = {item["name"]: item for item in report["items"]}
    assert found["helicone-export.jsonl"]["format"] == "helicone"
    assert found["helicone-export.jsonl"]["records"] == 12
    assert found["helicone-export.jsonl"]["tenants"] == 4
    assert found["TRUTH.json"]["format"] is None
    assert report["summary"]["estimated_s"] > 0
    assert not list(tmp_path.iterdir())


def test_a_dry_run_of_one_file_says_one_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = next(DATA.rglob("helicone-export.jsonl"))
    _, shown, _ = kvaudit(capsys, "scan", log, "--dry-run")
    assert "\n1 file, " in shown
    assert " 12 records, 4 tenants\n" in shown


def test_a_finished_scan_resumed_says_the_same_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = DATA / "litellm-standard-logging.jsonl", tmp_path / "run"
    first = kvaudit(capsys, "scan", log, "--out", out, "--json", "--quiet")
    table = (out / "requests.parquet").read_bytes()
    again = kvaudit(capsys, "scan", log, "--out", out, "--json", "--quiet", "--resume")
    assert (first[0], table) == (again[0], (out / "requests.parquet").read_bytes())
    a, b = json.loads(first[1]), json.loads(again[1])
    assert a.pop("ended_unix_ns") <= b.pop("ended_unix_ns")
    assert a == b

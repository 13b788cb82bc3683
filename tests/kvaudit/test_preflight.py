"""Preflight: the incident's launch in every spelling, and input that is broken, odd or silent."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaudit.cli.preflight_run import read_deployment
from kvaudit.errors import KvauditError
from kvaudit.findings import Finding, Severity, Verdict
from kvaudit.preflight.capacity import pool_tokens
from kvaudit.preflight.conditions import UNKNOWN, Facts, Value, ask, parse_condition
from kvaudit.preflight.deployment import assemble
from kvaudit.preflight.judging import Judgement, judge_deployment
from kvaudit.preflight.sources import read_text
from kvaudit.preflight.versions import parse_range, parse_version

CONTEXT, SMALL, LARGE = 1_048_576, 681_280, 2_040_000


def judged(*texts: str) -> Judgement:
    pieces = [piece for at, text in enumerate(texts) for piece in read_text(text, f"source {at}")]
    return judge_deployment(assemble(pieces))


def page(role: str, pool: int, version: str, **more: Any) -> str:
    limit = min(CONTEXT, pool) - 6
    return json.dumps({
        "version": version, "disaggregation_mode": role, "context_length": CONTEXT,
        "page_size": 64, "kv_cache_dtype": "fp8_e4m3", "allow_auto_truncate": False,
        "scheduler_info": {"max_total_num_tokens": pool, "max_req_input_len": limit}, **more,
    })  # fmt: skip


def command(role: str, pool: int) -> list[str]:
    return [
        "python3", "-m", "sglang.launch_server", "--model-path", "zai-org/GLM-5.3-FP8",
        "--disaggregation-mode", role, "--context-length", str(CONTEXT),
        "--max-total-tokens", str(pool), "--page-size", "64", "--tp-size", "8",
    ]  # fmt: skip


def pages(pool: int, version: str) -> list[str]:
    return [page("prefill", pool, version), page("decode", LARGE, version)]


def script(pool: int, version: str) -> list[str]:
    lines = [f"pip install 'sglang[all]=={version}'"]
    lines += [" ".join(command("prefill", pool)), " ".join(command("decode", LARGE))]
    return ["#!/bin/sh\n" + " \\\n  --host ".join([*lines[:1]]) + "\n" + "\n".join(lines[1:])]


def manifests(pool: int, version: str) -> list[str]:
    image = f"lmsysorg/sglang:v{version}-cu126"
    prefill = {"containers": [{"name": "s", "image": image, "command": command("prefill", pool)}]}
    decode = {"containers": [{
        "name": "s", "image": image, "command": ["bash", "-c"],
        "args": ["exec " + " ".join(command("decode", LARGE))
                 .replace(f" {CONTEXT} ", ' "${CONTEXT}" ')],
        "env": [{"name": "CONTEXT", "value": str(CONTEXT)}],
    }]}  # fmt: skip
    return [yaml.safe_dump_all([
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "p"},
         "spec": {"template": {"spec": prefill}}},
        {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
         "metadata": {"name": "d"},
         "spec": {"leaderWorkerTemplate": {"leaderTemplate": {"spec": decode},
                                           "workerTemplate": {"spec": decode}}}},
    ])]  # fmt: skip


WAYS = {"server_info": pages, "commands": script, "kubernetes": manifests}


def found(judgement: Judgement, rule_id: str) -> Finding:
    return next(held for held in judgement.findings if held.evidence.rule_id == rule_id)


def severities(judgement: Judgement) -> set[Severity]:
    return {finding.severity for finding in judgement.findings}


@pytest.mark.parametrize("way", WAYS)
def test_the_launch_of_the_incident_is_at_risk_with_its_band_and_its_sources(way: str) -> None:
    judgement = judged(*WAYS[way](SMALL, "0.5.19"))
    assert judgement.verdict is Verdict.AT_RISK
    finding = found(judgement, "KVA701")
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence.details["exposed_band"] == [681_274, 1_048_570]
    assert "sgl-project/sglang#30233" in str(finding.evidence.details["sources"])
    assert finding.evidence.details["fix"]


@pytest.mark.parametrize("way", WAYS)
def test_the_mended_launch_has_no_error_and_keeps_the_warnings_that_are_true(way: str) -> None:
    judgement = judged(*WAYS[way](LARGE, "0.5.22"))
    assert judgement.verdict is Verdict.CLEAN
    assert Severity.CRITICAL not in severities(judgement)
    assert Severity.ERROR not in severities(judgement)
    warned = {finding.evidence.rule_id for finding in judgement.findings}
    assert {"KVA707", "KVA709", "KVA710", "KVA716"} <= warned


def test_a_fixed_version_with_the_small_pool_is_an_error_and_not_the_critical_one() -> None:
    judgement = judged(*pages(SMALL, "0.5.22"))
    assert judgement.verdict is Verdict.AT_RISK
    assert severities(judgement) & {Severity.CRITICAL, Severity.ERROR} == {Severity.ERROR}
    assert found(judgement, "KVA703")


def test_a_candidate_of_the_fixed_version_is_not_fixed() -> None:
    assert found(judged(*pages(SMALL, "0.5.20rc1")), "KVA701")
    assert all(
        finding.evidence.rule_id != "KVA701"
        for finding in judged(*pages(SMALL, "0.5.20.post1")).findings
    )


def test_a_decode_pool_that_nobody_told_is_taken_at_its_worst_and_said_to_be() -> None:
    decode = "python -m sglang.launch_server --disaggregation-mode decode --page-size 64 " \
        f"--context-length {CONTEXT}  # sglang==0.5.19"  # fmt: skip
    prefill = " ".join(command("prefill", SMALL)) + "  # sglang==0.5.19"
    details = found(judged(prefill, decode), "KVA701").evidence.details
    assert details["exposed_band"] == [681_274, 1_048_570]
    assert "no source tells the pool of decode" in str(details["assumptions"])


def test_an_unknown_version_is_never_clean() -> None:
    for text in (
        "python -m sglang.launch_server --model-path m",
        "vllm serve m",
        json.dumps({"version": "nightly", "disaggregation_mode": "null", "status": "ready"}),
        "services: {a: {image: 'ollama/ollama:latest', command: ollama serve}}",
    ):
        judgement = judged(text)
        assert judgement.verdict in (Verdict.INCONCLUSIVE, Verdict.AT_RISK), text
        assert any(gap.fact == "version" and gap.is_decisive for gap in judgement.gaps)


def test_an_engine_that_no_hazard_names_is_not_clean() -> None:
    said = {"server": "kvaudit-reference", "version": "0.1.0", "context_length": 2048,
            "max_total_num_tokens": 1328, "page_size": 16}  # fmt: skip
    judgement = judged(json.dumps(said))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "no hazard of this version names the engine" in judgement.reasons[0]


def test_a_size_that_nobody_told_is_named_with_what_hangs_on_it() -> None:
    texts = [
        f"docker run lmsysorg/sglang:v0.5.22 sglang serve --model-path m --disaggregation-mode {r}"
        for r in ("prefill", "decode")
    ]
    judgement = judged(*texts)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("KVA703" in gap.hazards for gap in judgement.gaps)
    assert "KVA703" in " ".join(judgement.reasons)


@pytest.mark.parametrize(
    ("card", "weights", "is_below"), [(23.5, 15.0, True), (160.0, 15.0, False)]
)
def test_a_pool_is_reckoned_from_the_model_the_card_and_the_flags(
    tmp_path: Path, card: float, weights: float, is_below: bool
) -> None:
    config = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
              "hidden_size": 4096, "max_position_embeddings": 131_072}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "x.sh").write_text(
        "docker run lmsysorg/sglang:v0.5.22 sglang serve --model-path m", encoding="utf-8"
    )
    names = [str(tmp_path / name) for name in ("config.json", "x.sh")]
    deployment = read_deployment(names, [], (card, weights))
    assert [role.name for role in deployment.roles] == ["unified"]
    judgement = judge_deployment(deployment)
    fired = {finding.evidence.rule_id for finding in judgement.findings}
    assert ("KVA704" in fired) is is_below
    with pytest.raises(KvauditError, match="of no engine"):
        read_deployment(names[:1], [])


def test_a_role_that_is_missing_is_named() -> None:
    judgement = judged(page("prefill", LARGE, "0.5.22"))
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(gap.role == "decode" for gap in judgement.gaps)


def test_what_the_server_says_wins_over_its_flags_and_both_are_told() -> None:
    text = " ".join(command("prefill", LARGE)) + "  # sglang==0.5.19"
    log = (
        f"[2026-09-01 10:00:00 TP0] max_total_num_tokens={SMALL}, chunked_prefill_size=8192,"
        f" max_prefill_tokens=16384, max_running_requests=2048, context_len={CONTEXT}\n"
    )
    pieces = [*read_text(text, "launch.sh"), *read_text(log, "start.log")]
    deployment = assemble(pieces)
    assert [pool_tokens(role) for role in deployment.roles] == [SMALL]
    again = [*read_text(page("prefill", SMALL, "0.5.19", page_size=32), "page.json"),
             *read_text(text, "launch.sh")]  # fmt: skip
    conflict = "\n".join(assemble(again).conflicts)
    assert "`page_size` is 64 in launch.sh and 32 in page.json; the latter counts" in conflict


def test_two_prefill_servers_with_pools_of_their_own_stay_two() -> None:
    judgement = judged(
        page("prefill", LARGE, "0.5.19"), page("prefill", SMALL, "0.5.19"),
        page("decode", LARGE, "0.5.19"),
    )  # fmt: skip
    assert found(judgement, "KVA701").evidence.details["exposed_band"] == [681_274, 1_048_570]


def test_an_unknown_flag_is_kept_and_reported() -> None:
    deployment = assemble(read_text("sglang serve --model-path m --zebra-stripes 4", "x.sh"))
    assert deployment.roles[0].settings["zebra_stripes"].value == 4
    assert "--zebra-stripes" in deployment.notes[0]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.yaml", "spec:\n  containers: [\n", "no whole YAML"),
        ("a.yaml", 'image: "{{ .Values.x }}"\n', "template that was not rendered"),
        ("a.yaml", "image: {{ .Values.image }}\n", "template that was not rendered"),
        ("a.yaml", "kind: Pod\nkind: Pod\n", "stands twice"),
        ("a.yaml", "a: &a [x]\nb: " + "[" * 80 + "]" * 80, "nested more than"),
        ("a.yaml", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)), "nodes"),
        ("a.yaml", "a: &a [*a]\n", "alias of itself"),
        ("a.yaml", "a: !!python/object/apply:os.system [x]\n", "no whole YAML"),
        ("a.yaml", "kind: Service\nmetadata: {name: x}\n", "starts no engine"),
        ("a.json", '{"version": "0.5.1', "no whole JSON"),
        ("a.json", '{"hello": 1}', "no page of a server"),
        ("a.sh", "vllm serve m --kv-transfer-config '{kv'", "no JSON"),
        ("a.sh", "vllm serve 'm", "can't be split"),
        ("a.sh", "echo hello", "starts no engine"),
        ("a.sh", "  \n", "is empty"),
    ],
)  # fmt: skip
def test_a_broken_source_is_refused_with_what_is_wrong(
    tmp_path: Path, name: str, text: str, said: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(KvauditError, match=said):
        read_deployment([str(path)], [])


def test_a_url_where_nobody_answers_is_told() -> None:
    with pytest.raises(KvauditError, match=r"can.t reach `http://127\.0\.0\.1:1`"):
        read_deployment(["http://127.0.0.1:1"], [])


def test_a_url_of_somebody_else_is_not_asked_without_their_word() -> None:
    with pytest.raises(KvauditError, match="is not this machine") as caught:
        read_deployment(["http://192.0.2.1:8000"], [])
    assert "--i-am-authorised" in str(caught.value.hint)


def test_chopped_and_shuffled_sources_end_in_an_answer_or_an_error() -> None:
    draw = random.Random(7)
    texts = [*pages(SMALL, "0.5.19"), *script(SMALL, "0.5.19"), *manifests(SMALL, "0.5.19")]
    for _ in range(120):
        text = draw.choice(texts)
        start = draw.randrange(len(text))
        cut = text[:start] + draw.choice(["", "\x00", "{", "- *x", "\\"]) + text[start + 3 :]
        try:
            judged(cut[: draw.randrange(len(cut)) + 1])
        except KvauditError:
            continue


def test_versions_stand_in_the_order_of_publication() -> None:
    ordered = [
        "0.5.19", "0.5.20.dev3+g1a2b", "0.5.20a1", "0.5.20rc1", "0.5.20-rc2", "v0.5.20",
        "0.5.20.post1.dev1", "0.5.20.post1", "0.5.21-cu126",
    ]  # fmt: skip
    versions = [parse_version(text) for text in ordered]
    assert None not in versions
    assert versions == sorted(versions)  # type: ignore[type-var]
    assert len(set(versions)) == len(versions)
    assert parse_version("0.5.20+cu128") == parse_version("0.5.20-cu126")
    for text in ("latest", "nightly-2026-01-02", "main", "", "v", "1"):
        assert parse_version(text) is None, text
    before = parse_version("b4881")
    assert before is not None
    assert not parse_range(">=b4882,<=b9058").holds(before)


TRUE, FALSE = {"a": True, "n": 5}, {"a": False, "n": 1}


@pytest.mark.parametrize(
    ("text", "facts", "holds", "missing"),
    [
        ("a and n > 3", TRUE, True, set()),
        ("a or n > 3", FALSE, False, set()),
        ("not a", FALSE, True, set()),
        ("a and u", FALSE, False, set()),
        ("a or u", TRUE, True, set()),
        ("a and u", TRUE, None, {"u"}),
        ("not u", TRUE, None, {"u"}),
        ("u == 3 or (n >= 5 and u)", TRUE, None, {"u"}),
        ("any(a)", FALSE, False, set()),
    ],
)
def test_what_is_not_known_spreads_unless_the_rest_decides(
    text: str, facts: dict[str, Value], holds: bool | None, missing: set[str]
) -> None:
    answer = ask(parse_condition(text), Facts(fact=lambda name: facts.get(name, UNKNOWN)))
    assert (answer.holds, set(answer.missing)) == (holds, missing)


def test_the_command_writes_a_run_and_its_contract(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvaudit.cli.preflight import preflight

    names = []
    for name, text in zip(("p.json", "d.json"), pages(SMALL, "0.5.19"), strict=True):
        (tmp_path / name).write_text(text, encoding="utf-8")
        names.append(str(tmp_path / name))
    status = preflight(names, out=tmp_path / "run", json=True, quiet=True)
    report = json.loads(capsys.readouterr().out)
    assert (status, report["command"], report["verdict"]) == (1, "preflight", "at_risk")
    critical = [held for held in report["findings"] if held["rule"] == "KVA701"]
    assert [held["severity"] for held in critical] == ["critical"]
    assert critical[0]["details"]["exposed_band"] == [681_274, 1_048_570]
    assert critical[0]["details"]["sources"][0] == "sgl-project/sglang#30233"
    assert critical[0]["details"]["fix"].startswith("Go to SGLang 0.5.22")
    assert critical[0]["source"] is None
    assert json.loads((tmp_path / "run" / "report.json").read_text("utf-8")) == report
    assert report["target"]["roles"][0]["pool_tokens"] == SMALL


def test_a_clean_preflight_claims_nothing_of_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvaudit.cli.preflight import preflight
    from kvaudit.cli.verify import verify

    command = "docker run vllm/vllm-openai:v0.32.0 --model m --api-key sk-verysecret"
    assert preflight([command], out=tmp_path / "run", json=True, quiet=True) == 0
    out = capsys.readouterr().out
    assert "nothing was sent or observed" in json.loads(out)["summary"]
    assert "verysecret" not in out
    assert verify(tmp_path / "run", quiet=True) == 0
    assert "verysecret" not in (tmp_path / "run" / "journal.jsonl").read_text("utf-8")

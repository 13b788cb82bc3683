"""Deployments as strangers write them, in `tests/data/deployments`, each judged by hand first."""

from pathlib import Path

import pytest

from kvaudit.cli.preflight_run import read_deployment
from kvaudit.errors import KvauditError
from kvaudit.findings import Severity, Verdict
from kvaudit.preflight.deployment import Deployment
from kvaudit.preflight.judging import Judgement, judge_deployment

FOLDER = Path(__file__).resolve().parents[1] / "data" / "deployments"
INCIDENT = {"KVA701", "KVA702", "KVA703"}
AT_RISK, INCONCLUSIVE, CLEAN = Verdict.AT_RISK, Verdict.INCONCLUSIVE, Verdict.CLEAN

# Files -> verdict, rules of severity critical or error, band of KVA701.
JUDGED = {
    "01-helm-rendered.yaml": (AT_RISK, INCIDENT, [681_274, 1_048_570]),
    "05-leaderworkerset.yaml": (AT_RISK, INCIDENT, [681_274, 1_048_570]),
    "06-router-sidecar.yaml": (CLEAN, set(), None),
    "07-compose-anchors.yml": (AT_RISK, INCIDENT, [65_530, 131_066]),
    "08-vllm-nixl.sh": (CLEAN, set(), None),
    "09-vllm-mooncake.yaml": (AT_RISK, {"KVA729"}, None),
    "10-prefill-only.sh": (INCONCLUSIVE, set(), None),
    "11-units.sh": (AT_RISK, INCIDENT, [681_274, 1_048_570]),
    "12-unknown-flags.sh": (CLEAN, set(), None),
    "13-kubectl-get.json": (AT_RISK, INCIDENT, [99_994, 131_066]),
    "14-role-by-variable.sh": (INCONCLUSIVE, set(), None),
    "15-one-script-two-roles.yaml": (AT_RISK, INCIDENT, [40_954, 65_530]),
    "16-trtllm.sh 16-trtllm.yaml": (CLEAN, set(), None),
    "17-litellm.yaml": (AT_RISK, {"KVA783"}, None),
    "18-vendor-tag.yaml": (INCONCLUSIVE, set(), None),
    "19-lmcache.yaml": (AT_RISK, {"KVA760"}, None),
    "20-Dockerfile": (AT_RISK, {"KVA748"}, None),
    "21-launch.sh 21-sglang-config.yaml": (AT_RISK, {"KVA703"}, None),
    "21-launch.sh": (INCONCLUSIVE, set(), None),
    "22-dynamo.yaml": (AT_RISK, INCIDENT, [40_954, 65_530]),
    "23-flags.sh 23-pages.json": (AT_RISK, {"KVA703"}, None),
    "24-env-spellings.yaml": (CLEAN, set(), None),
    "25-router-only.sh": (INCONCLUSIVE, set(), None),
    "26-arguments-in-an-array.sh": (INCONCLUSIVE, set(), None),
}
# File -> what the refusal says.
REFUSED = {
    "02-helm-template.yaml": "template that was not rendered",
    "03-helm-values.yaml": "starts no engine",
    "04-half-written.yaml": "no whole YAML on line 11",
}


def read(names: str) -> tuple[Deployment, Judgement]:
    deployment = read_deployment([str(FOLDER / name) for name in names.split()], [])
    return deployment, judge_deployment(deployment)


@pytest.mark.parametrize("names", JUDGED)
def test_a_deployment_gets_the_verdict_that_a_person_gave_it(names: str) -> None:
    verdict, decisive, band = JUDGED[names]
    _, judgement = read(names)
    found = {
        finding.evidence.rule_id: finding
        for finding in judgement.findings
        if finding.severity in (Severity.CRITICAL, Severity.ERROR)
    }
    assert (judgement.verdict, set(found)) == (verdict, decisive), judgement.reasons
    if band is not None:
        assert found["KVA701"].evidence.details["exposed_band"] == band


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_says_nothing_whole_is_refused(name: str) -> None:
    with pytest.raises(KvauditError, match=REFUSED[name]) as caught:
        read(name)
    assert caught.value.hint


def test_every_file_of_the_folder_is_judged() -> None:
    named = {name for names in (*JUDGED, *REFUSED) for name in names.split()}
    assert {path.name for path in FOLDER.iterdir() if path.name[0].isdigit()} == named


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("10-prefill-only.sh", "`the role itself` of decode"),
        ("14-role-by-variable.sh", "`disaggregation_mode` of unified"),
        ("18-vendor-tag.yaml", "`version` of unified (llm)"),
        ("21-launch.sh", "`pool_tokens` of unified"),
        ("25-router-only.sh", "`engine` of the servers behind gateway"),
        ("26-arguments-in-an-array.sh", "`disaggregation_mode` of unified"),
    ],
)
def test_an_open_question_is_named_as_the_reason(names: str, said: str) -> None:
    assert said in " ".join(read(names)[1].reasons)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("12-unknown-flags.sh", "`--zebra-stripes` is not known here"),
        ("18-vendor-tag.yaml", "the tag `25.09-py3` of `nvcr.io/nvidia/vllm` is no version"),
        ("21-launch.sh", "`conf/21-sglang-config.yaml` is not among the sources"),
        ("26-arguments-in-an-array.sh", "holds a variable that no source sets"),
    ],
)
def test_what_was_not_understood_is_noted(names: str, said: str) -> None:
    assert said in " ".join(read(names)[0].notes)


def test_a_file_that_its_launch_names_is_not_said_to_be_missing() -> None:
    deployment, _ = read("21-launch.sh 21-sglang-config.yaml")
    assert not deployment.notes
    assert [role.role for role in deployment.roles] == ["prefill", "decode"]
    assert deployment.roles[0].settings["max_total_tokens"].value == 98_304
    (trtllm,) = read("16-trtllm.sh 16-trtllm.yaml")[0].roles
    assert trtllm.settings["host_cache_size"].value == 45_000_000_000


def test_the_pool_that_a_server_tells_wins_over_the_wiki() -> None:
    deployment, judgement = read("23-flags.sh 23-pages.json")
    sizes = judgement.findings[0].evidence.details["sizes"]
    assert isinstance(sizes, dict)
    assert "681280" in str(sizes["prefill"])
    assert not [text for text in deployment.conflicts if "version" in text], "v0.5.22 is 0.5.22"


def test_sidecars_and_first_containers_are_no_engines_of_the_deployment() -> None:
    roles = {role.engine for role in read("06-router-sidecar.yaml")[0].roles}
    assert roles == {"sglang", "sglang-router"}
    assert {role.engine for role in read("19-lmcache.yaml")[0].roles} == {"vllm", "lmcache"}
    assert len(read("01-helm-rendered.yaml")[0].roles) == 2


SERVE = (
    "python -m sglang.launch_server --model-path m --context-length 65536 --page-size 64"
    " --max-total-tokens 131072 --disaggregation-mode "
)
FIXED, BROKEN = "pip install sglang==0.5.22\n", "pip install sglang==0.5.19\n"
POD = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n"
SMALL = SERVE.replace("131072", "40960")


@pytest.mark.parametrize(
    ("text", "verdict", "decisive"),
    [
        (FIXED + SERVE + "prefill\n" + SERVE + "decode --allow-auto-truncate", AT_RISK, {"KVA705"}),
        (FIXED + SERVE + "prefill --kv-cache-dtype fp8_e4m3\n" + SERVE
         + "decode --kv-cache-dtype bfloat16", AT_RISK, {"KVA706"}),
        (FIXED + SERVE + "prefill --revision a\n" + SERVE + "decode --revision b", AT_RISK,
         {"KVA706"}),
        (FIXED + SERVE + "prefill > p.log 2>&1 &\n" + SERVE + "decode &", CLEAN, set()),
        # Two prefill servers: the small one is not hidden by the one that comes after it.
        (BROKEN + SMALL + "prefill\n" + SERVE + "prefill\n" + SERVE + "decode", AT_RISK, INCIDENT),
        (BROKEN + f'docker exec p bash -lc "{SMALL}prefill"\nssh gpu2 "{SERVE}decode"', AT_RISK,
         INCIDENT),
        ("# sglang==0.5.19\n[Service]\nEnvironment=A=1\nExecStart=/usr/bin/" + SMALL + "prefill",
         AT_RISK, INCIDENT),
        (POD + "    - {name: a, image: 'lmsysorg/sglang:v0.5.19', command: [python3, -m,"
         " sglang.launch_server], args: ['--disaggregation-mode prefill --max-total-tokens 40960"
         " --context-length 65536']}\n    - {name: b, image: 'lmsysorg/sglang:v0.5.19', command:"
         " [python3, -m, sglang.launch_server], args: [--disaggregation-mode, decode,"
         " --max-total-tokens, 131072, --context-length, 6.5536e+4]}", AT_RISK, INCIDENT),
        ("ARG TAG=v0.5.19\nFROM lmsysorg/sglang:${TAG}\nCMD " + SERVE + "prefill", AT_RISK,
         {"KVA702"}),
        ("docker run lmsysorg/sglang@sha256:ab python3 -m sglang.launch_server --model-path m",
         INCONCLUSIVE, set()),
        ("docker run corp/llm/sglang:2.4.1 python3 -m sglang.launch_server --model-path m",
         INCONCLUSIVE, set()),
        ("docker run rocm/vllm:rocm6.4.1_vllm_0.7.1_20250909 vllm serve m --enable-prefix-caching",
         AT_RISK, {"KVA720"}),
        ('pip install vllm==0.32.0\nvllm serve m --kv-transfer-config \'{"kv_connector":'
         '"LMCacheConnectorV1","kv_role":"kv_both"}\'', INCONCLUSIVE, set()),
        ('{"version": "0.5.22", "disaggregation_mode": "prefill", "context_length": 1000,'
         ' "scheduler_info": {"max_total_num_tokens": 900}}\n{"version": "0.5.22",'
         ' "disaggregation_mode": "decode", "context_length": 1000, "scheduler_info":'
         ' {"max_total_num_tokens": 2000}}', AT_RISK, {"KVA703"}),
    ],
)  # fmt: skip
def test_odd_spellings_get_the_verdict_that_a_person_gave_them(
    text: str, verdict: Verdict, decisive: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "source"
    path.write_text(text, encoding="utf-8")
    judgement = judge_deployment(read_deployment([str(path)], []))
    found = {
        finding.evidence.rule_id
        for finding in judgement.findings
        if finding.severity in (Severity.CRITICAL, Severity.ERROR)
    }
    assert (judgement.verdict, found) == (verdict, decisive), judgement.reasons


@pytest.mark.parametrize("value", ["0", "false", "False", "off"])
def test_a_release_that_is_not_deferred_warns_however_it_is_spelled(
    value: str, tmp_path: Path
) -> None:
    path = tmp_path / "launch.sh"
    variable = f"export SGLANG_DISAGGREGATION_DEFERRED_DECODE_KV_RELEASE={value}\n"
    path.write_text(FIXED + variable + SERVE + "prefill\n" + SERVE + "decode", encoding="utf-8")
    judgement = judge_deployment(read_deployment([str(path)], []))
    assert "KVA708" in {finding.evidence.rule_id for finding in judgement.findings}

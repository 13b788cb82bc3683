"""What the judge makes of oracles that need no foreign text: pairs, lists, sensitivities."""

import json
from dataclasses import replace
from importlib import resources

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.detect.catalogue import DETECTORS
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.reference import FILE_NAME, reference_sensitivities
from kvaudit.findings import Kind, Severity, Verdict
from kvaudit.judge import judge
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.rules import RULES
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import PlannedRequest

LIMIT = 1321
FACTS = ServerFacts(
    context_tokens=2048,
    dtype="float32",
    roles=(
        RoleFacts(role="prefill", pool_tokens=1328, max_input_tokens=LIMIT, page_size=16),
        RoleFacts(role="decode", pool_tokens=4096, max_input_tokens=2041, page_size=16),
    ),
)
TENANTS = 4
MINT = CanaryMint("secret")
IDS = tuple(range(24))
LOGPROBS = (-0.5,) * 24
TEXTS = {
    "t0": "The harbor master counts the barges of the northern dock on Tuesday.",
    "t1": "Our bakery wants a recipe for forty loaves of rye bread and a list.",
    "t2": "Please explain why the moon seems to follow the train at night.",
    "t3": "Draft a letter to the landlord about the window in the second hall.",
}


def request(name, number, role, *, wave, stratum="", sent=200, block=0, **changes):
    """One answered request, right, with a replay that agrees and a plausible time."""
    tenant = f"t{number % TENANTS}"
    canary = MINT.mint(f"{name}/1", tenant)
    text = f"{TEXTS[tenant]} The code is {canary.code_text}, also {canary.phrase}.\nThe code is"
    record = RequestRecord(
        request_id=name, tenant=tenant, role=role, stratum=stratum, scenario="incident",
        block=block, wave=wave, messages=(Message(role="user", content=text),), canaries=(canary,),
        expected=canary.code_text, prompt_tokens_sent=sent, prompt_tokens=sent,
        outcome=Outcome.ANSWERED, status=200, endpoint="/v1/completions", cached_tokens=0,
        output_text=f" {canary.code_text}. Ask at desk {name}.", output_token_ids=IDS,
        output_logprobs=LOGPROBS, replay_logprobs=LOGPROBS, ttft_ms=5 + 0.2 * sent,
        finish_reason="stop", completion_tokens=24,
        sent_unix_ns=wave * 100, ended_unix_ns=wave * 100 + 50,
    )  # fmt: skip
    return replace(record, **changes)


def judged(trigger, *, trials=8, facts=FACTS, before=(), short=False):
    """A run of calibration, company, and trials whose triggers are changed as `trigger` says."""
    records = [
        request(f"c{n}", n, Role.CALIBRATION, wave=0, sent=990 if n == 3 else 200)
        for n in range(10)
    ]
    if short:
        records = [replace(held, output_text=f" {held.expected}.") for held in records]
    records += [request(f"k{n}", n, Role.CONTROL, wave=1) for n in range(22)]
    records += before
    twins = []
    for n in range(trials):
        wave = 2 + 2 * n
        records.append(request(f"f{n}", n + 1, Role.FILL, wave=wave, sent=LIMIT, block=n))
        canary = MINT.mint(f"twin{n}/1", f"t{(n + 1) % TENANTS}")
        content = f"{canary.phrase} {canary.code_text}"
        twins.append(
            PlannedRequest(
                request_id=f"twin{n}", tenant=canary.tenant, scenario="", stratum="",
                messages=(Message(role="user", content=content),), role=Role.FILL,
                canaries=(canary,),
            )
        )  # fmt: skip
        records += [
            request(
                f"o{n}", n, Role.TRIGGER, wave=wave + 1, stratum="over-limit", sent=1300,
                block=n, **trigger(n),
            ),
            request(f"i{n}", n, Role.CONTROL, wave=wave + 1, stratum="in-limit", block=n),
        ]  # fmt: skip
    corpus = Corpus(records=tuple(records), twins=tuple(twins), facts=facts)
    return judge(corpus, strata=("over-limit", "in-limit"), confidence=0.95)


def fired(judgement):
    return {item.evidence.rule_id for item in judgement.findings}


GAP = {"replay_logprobs": (-4.0,) * 24}


def test_a_run_without_any_alarm_is_clean_and_every_oracle_but_the_inapplicable_is_available():
    judgement = judged(lambda n: {})
    assert (judgement.verdict, judgement.findings) == (Verdict.CLEAN, ())
    # Only scenario `company` sends a prompt alone and again, only `timing-pair` times prefixes.
    missing = [item.rule_id for item in judgement.oracles if not item.available]
    assert missing == ["KVA406", "KVA601"]
    assert {item.false_alarms for item in judgement.oracles if item.available} == {0}


def test_a_replay_gap_alone_is_inconclusive():
    judgement = judged(lambda n: GAP if n == 2 else {})
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "one family only: KVA408 (1 answer)" in judgement.reasons


def test_a_replay_gap_and_a_lost_nonce_convict_without_any_foreign_text():
    judgement = judged(lambda n: {**GAP, "output_text": " who knows"} if n == 2 else {})
    assert judgement.verdict is Verdict.CONTAMINATED
    assert "recall (KVA401), replay (KVA408)" in judgement.reasons[0]


def test_a_replay_gap_and_an_early_first_token_convict():
    judgement = judged(lambda n: {**GAP, "ttft_ms": 9.0} if n == 2 else {})
    assert judgement.verdict is Verdict.CONTAMINATED
    assert "timing (KVA303), replay (KVA408)" in judgement.reasons[0]


def test_lost_nonces_that_all_begin_alike_are_one_family():
    judgement = judged(lambda n: {"output_text": f"The gate {n}", "output_token_ids": (77, 1)})
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert {"KVA401", "KVA407"} == fired(judgement)
    assert any(
        reason.startswith("one family only: KVA401 and KVA407") for reason in judgement.reasons
    )


def test_an_answer_without_sense_never_convicts_and_bars_clean():
    judgement = judged(lambda n: {"output_text": "!" * 90, "expected": None} if n == 2 else {})
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons == ("corrupt, no source: KVA404 (1 answer)",)
    both = judged(lambda n: {"output_text": "!" * 90, **GAP, "expected": None} if n == 2 else {})
    assert both.verdict is Verdict.INCONCLUSIVE


def test_a_shared_cache_is_a_warning_that_decides_nothing_and_counts_in_no_bound():
    judgement = judged(lambda n: {"cached_tokens": 640} if n == 2 else {})
    assert judgement.verdict is Verdict.CLEAN
    (finding,) = judgement.findings
    assert (finding.evidence.rule_id, finding.severity) == ("KVA304", Severity.WARNING)
    assert finding.kind is Kind.SHARING
    assert [bound.detections for bound in judgement.bounds] == [0, 0]
    assert judgement.counts["sinks_with_findings"] == 0


def with_repeats(lost, **changes):
    """A judged run of which `lost` of 7 prompts sent alone are answered wrong in company."""
    before = []
    for n in range(7):
        alone = request(f"p{n}-alone", n, Role.CONTROL, wave=1, stratum="alone", block=n)
        more = replace(alone, request_id=f"p{n}-in-company", stratum="in-company", wave=40)
        if n < lost:
            more = replace(more, output_text=f"nobody says {n}", **changes)
        before += [alone, more]
    return judged(lambda n: {}, before=before)


def test_one_loss_in_company_is_a_candidate_and_a_stratum_of_them_is_one_family():
    one, every = with_repeats(1), with_repeats(7)
    assert (one.verdict, one.findings) == (Verdict.CLEAN, ())
    assert {item.rule_id for item in one.candidates} == {"KVA401", "KVA406"}
    assert every.verdict is Verdict.INCONCLUSIVE
    assert fired(every) == {"KVA401", "KVA406"}
    assert "one family only: KVA401 and KVA406 (7 answers)" in every.reasons


def test_one_loss_in_company_with_a_replay_gap_on_the_same_request_convicts():
    judgement = with_repeats(1, **GAP)
    assert judgement.verdict is Verdict.CONTAMINATED
    assert "recall (KVA401, KVA406), replay (KVA408)" in judgement.reasons[0]


def test_a_canary_in_disguise_convicts_by_itself():
    code = MINT.mint("f2/1", "t3").code.lower()
    judgement = judged(lambda n: {"output_text": f"it was {code}"} if n == 2 else {})
    assert judgement.verdict is Verdict.CONTAMINATED
    (finding,) = [item for item in judgement.findings if item.evidence.rule_id == "KVA102"]
    assert finding.evidence.source.request_id == "f2"


def test_swap_on_paper_measures_disguised_canaries_and_equal_replies():
    reports = {item.rule_id: item for item in judged(lambda n: {}).oracles}
    assert reports["KVA102"].sensitivity == 1.0
    assert reports["KVA203"].sensitivity == 1.0


def test_answers_too_short_to_swap_measure_nothing_and_that_is_told():
    before = [
        request(f"s{n}", n, Role.CONTROL, wave=1, output_text="a" * 40 + f" {n}") for n in range(2)
    ]
    judgement = judged(lambda n: {}, before=before, short=True)
    (report,) = [item for item in judgement.oracles if item.rule_id == "KVA203"]
    assert report.sensitivity is None
    assert "long enough" in report.reason


@pytest.mark.parametrize("rule_id", ["KVA302", "KVA303", "KVA407", "KVA408"])
def test_what_a_swap_can_t_show_is_the_reference_engine_s_value_and_named_so(rule_id):
    path = resources.files("kvaudit.detect").joinpath(FILE_NAME)
    stored = json.loads(path.read_text(encoding="utf-8"))
    measured = stored["rules"][rule_id]
    assert "bench_sensitivity.py" in stored["made_by"]
    assert measured["trials"] >= 30
    (report,) = [item for item in judged(lambda n: {}).oracles if item.rule_id == rule_id]
    assert report.sensitivity == measured["hits"] / measured["trials"]
    assert reference_sensitivities()[rule_id].reason in report.reason
    assert f"{measured['hits']} of {measured['trials']}" in report.reason


def test_every_detector_serves_a_built_rule_of_live_audits_once():
    ids = [detector.rule_id for detector in DETECTORS]
    assert len(ids) == len(set(ids))
    assert all(RULES[rule_id].is_built and "a" in RULES[rule_id].sees for rule_id in ids)

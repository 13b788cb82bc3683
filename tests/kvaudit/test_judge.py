"""Verdicts on hand-made runs: who is contaminated, who is not, and what keeps a run from clean."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.canary import CanaryMint
from kvaudit.detect.corpus import Corpus
from kvaudit.findings import Kind, Verdict
from kvaudit.judge import judge
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import PlannedRequest

LIMIT = 1321
FACTS = ServerFacts(
    context_tokens=2048,
    roles=(
        RoleFacts(role="prefill", pool_tokens=1328, max_input_tokens=LIMIT),
        RoleFacts(role="decode", pool_tokens=4096, max_input_tokens=2041),
    ),
)
STRATA = ("over-limit", "in-limit")
TENANTS = 4
MINT = CanaryMint("secret")  # shared: minting compares each code with all earlier ones


class World:
    """Builds the records of one run, request by request, in the order of the plan."""

    def __init__(self, mint=None):
        self.mint = mint or MINT
        self.records: list[RequestRecord] = []
        self.twins: list[PlannedRequest] = []

    def send(self, name, tenant, role, *, stratum="", sent=200, block=0, **reply):
        canaries = tuple(self.mint.mint(f"{name}/{n}", tenant) for n in (1, 2))
        asked, other = canaries
        prompt = (
            f"The code of the {name} hall is {asked.code_text}. It answers to {asked.phrase}."
            f" Gate {name} keeps {len(self.records)} barrels. The code of the {name} barn is"
            f" {other.code_text}.\nThe code of the {name} hall is"
        )
        right = f" {asked.code_text}."
        record = RequestRecord(
            request_id=name, tenant=tenant, role=role, stratum=stratum, scenario="incident",
            block=block, messages=(Message(role="user", content=prompt),), canaries=canaries,
            expected=asked.code_text, prompt_tokens_sent=sent, prompt_tokens=sent,
            outcome=Outcome.ANSWERED, status=200, output_text=right, endpoint="/v1/completions",
            sent_unix_ns=len(self.records) * 100, ended_unix_ns=len(self.records) * 100 + 50,
        )  # fmt: skip
        record = replace(record, **reply)
        self.records.append(record)
        return record

    def calibrate(self, right=10):
        for number in range(10):
            lost = {} if number < right else {"output_text": "who knows"}
            self.send(f"c{number}", f"t{number % TENANTS}", Role.CALIBRATION, **lost)

    def trials(self, count, trigger, control=None):
        """`trigger(fill, index)` gives the reply fields of each trigger."""
        for index in range(count):
            sender = index % TENANTS
            fill = self.send(
                f"f{index}", f"t{(sender + 1) % TENANTS}", Role.FILL, sent=LIMIT, block=index
            )
            self.twins.append(self._twin(f"twin{index}", fill))
            self.send(
                f"o{index}",
                f"t{sender}",
                Role.TRIGGER,
                stratum="over-limit",
                sent=1400,
                block=index,
                **trigger(fill, index),
            )
            self.send(
                f"i{index}", f"t{sender}", Role.CONTROL, stratum="in-limit", block=index,
                **(control(fill, index) if control else {}),
            )  # fmt: skip

    def _twin(self, name, fill):
        canary = self.mint.mint(f"{name}/1", fill.tenant)
        content = f"{canary.phrase} {canary.code_text}"
        return PlannedRequest(
            request_id=name,
            tenant=fill.tenant,
            messages=(Message(role="user", content=content),),
            scenario="incident",
            stratum="",
            role=Role.FILL,
            canaries=(canary,),
        )

    def judge(self, *, facts=FACTS, strata=STRATA, **options):
        corpus = Corpus(records=tuple(self.records), twins=tuple(self.twins), facts=facts)
        return judge(corpus, strata=strata, confidence=0.95, **options)


def refused(fill, index):
    return {
        "outcome": Outcome.REFUSED, "status": 400, "output_text": None, "prompt_tokens": None,
        "error_message": "too long",
    }  # fmt: skip


def leaks(fill, index):
    return {"output_text": f" {fill.canaries[0].code_text}. It"}


def garbled(fill, index):
    return {"output_text": "- - - - - - - - - -"}


def run(trigger, count=8, *, right=10, control=None, **options):
    world = World()
    world.calibrate(right)
    world.trials(count, trigger, control)
    return world.judge(**options)


# --- contaminated ---------------------------------------------------------------------------------


def test_one_foreign_canary_among_many_clean_requests_is_contamination():
    judgement = run(lambda fill, index: leaks(fill, index) if index == 3 else refused(fill, index))
    assert judgement.verdict is Verdict.CONTAMINATED
    assert {item.evidence.sink_request_id for item in judgement.findings} == {"o3"}
    assert judgement.findings[0].evidence.source.request_id == "f3"
    assert judgement.findings[0].kind is Kind.EXPOSURE


def test_every_contaminated_sink_has_its_own_finding_with_its_own_source():
    judgement = run(leaks, 12)
    pairs = {
        (item.evidence.sink_request_id, item.evidence.source.request_id)
        for item in judgement.findings
        if item.evidence.rule_id == "KVA101"
    }
    assert pairs == {(f"o{index}", f"f{index}") for index in range(12)}
    assert judgement.counts["sinks_with_foreign_text"] == 12


def test_two_families_on_one_request_convict_without_any_foreign_text():
    judgement = run(
        lambda fill, index: garbled(fill, index) if index == 2 else refused(fill, index)
    )
    assert judgement.verdict is Verdict.CONTAMINATED
    assert "accounting (KVA302), recall (KVA401)" in judgement.reasons[0]
    assert {item.evidence.rule_id for item in judgement.findings} == {"KVA302", "KVA401"}


def test_a_leak_in_an_in_limit_request_convicts_too():
    judgement = run(refused, control=lambda fill, index: leaks(fill, index) if not index else {})
    assert judgement.verdict is Verdict.CONTAMINATED


def test_a_stopped_run_with_evidence_stays_contaminated():
    assert run(leaks, 2, stopped="interrupted").verdict is Verdict.CONTAMINATED


# --- one family is not enough ---------------------------------------------------------------------


def test_accounting_alone_is_inconclusive_and_says_so():
    judgement = run(lambda fill, index: {})  # over the limit, answered right
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(reason.startswith("one family only: KVA302") for reason in judgement.reasons)


def test_two_rules_of_one_family_are_one_family():
    judgement = run(lambda fill, index: {"prompt_tokens": 1})
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("one family only: KVA301 and KVA302" in reason for reason in judgement.reasons)


def test_lost_nonces_of_a_whole_stratum_alone_are_inconclusive():
    judgement = run(garbled, 10, facts=ServerFacts())
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("one family only: KVA401" in reason for reason in judgement.reasons)
    assert {item.evidence.rule_id for item in judgement.findings} == {"KVA401"}


def test_a_single_lost_nonce_stays_a_candidate_and_does_not_bar_clean():
    judgement = run(refused, 8, control=lambda f, i: {"output_text": "hm"} if i == 1 else {})
    assert judgement.verdict is Verdict.CLEAN
    assert judgement.findings == ()
    assert [item.rule_id for item in judgement.candidates] == ["KVA401"]


# --- truncation explains --------------------------------------------------------------------------


def keeps_the_tail(tokens_reported):
    def reply(world):
        def trigger(fill, index):
            other = world.mint.mint(f"o{index}/2", f"t{index % TENANTS}")
            return {"output_text": f" {other.code_text}.", "prompt_tokens": tokens_reported}

        return trigger

    return reply


@pytest.mark.parametrize("reported", [1000, 1400, None])
def test_a_server_that_silently_keeps_the_last_tokens_is_not_contaminated(reported):
    world = World()
    world.calibrate()
    world.trials(8, keeps_the_tail(reported)(world))
    judgement = world.judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any(reason.startswith("server truncates") for reason in judgement.reasons)
    assert not judgement.findings
    explained = [item for item in judgement.candidates if "explained_by" in item.details]
    assert {item.sink_request_id for item in explained} == {f"o{index}" for index in range(8)}


def test_usage_that_shows_the_cut_explains_even_garbage():
    judgement = run(lambda fill, index: {"output_text": "who knows", "prompt_tokens": 1000})
    assert judgement.verdict is Verdict.INCONCLUSIVE


def test_truncation_does_not_explain_a_foreign_canary_away():
    judgement = run(lambda fill, index: {**leaks(fill, index), "prompt_tokens": 1000})
    assert judgement.verdict is Verdict.CONTAMINATED


def test_a_server_that_garbles_everything_is_inconclusive():
    judgement = run(garbled, 8, right=0, control=garbled, facts=FACTS)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    recall = next(item for item in judgement.oracles if item.rule_id == "KVA401")
    assert not recall.available


# --- clean, and what bars it ----------------------------------------------------------------------


def test_refused_triggers_and_right_controls_are_clean_with_exact_bounds():
    judgement = run(refused, 32)
    assert judgement.verdict is Verdict.CLEAN
    over, within = judgement.bounds
    assert (over.requests, over.detections, over.censored) == (32, 0, 0)
    sensitivity = 0.025 ** (1 / 10)
    assert over.sensitivity == pytest.approx(sensitivity)
    assert over.upper == pytest.approx((1 - 0.025 ** (1 / 32)) / sensitivity)
    assert within.requests == 32


def test_six_requests_in_a_stratum_are_too_few():
    assert run(refused, 6).verdict is Verdict.INCONCLUSIVE
    assert run(refused, 7).verdict is Verdict.CLEAN


def test_an_empty_run_is_inconclusive():
    judgement = World().judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reasons == ("nothing was sent",)


def test_a_run_without_strata_is_inconclusive():
    assert run(refused, strata=()).verdict is Verdict.INCONCLUSIVE


def test_an_interrupted_run_is_inconclusive_however_clean_so_far():
    judgement = run(refused, 10, stopped="interrupted")
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert "interrupted" in judgement.reasons[0]


def test_a_bound_over_the_target_rate_bars_clean():
    assert run(refused, 32, target_rate=0.05).verdict is Verdict.INCONCLUSIVE
    # One stratum alone is under .16; that both are has to hold together.
    both = run(refused, 32, target_rate=0.16)
    assert both.verdict is Verdict.INCONCLUSIVE
    assert "(Holm)" in both.reasons[0]
    assert run(refused, 32, target_rate=0.2).verdict is Verdict.CLEAN


CENSORED = [Outcome.ERROR, Outcome.RATE_LIMITED, Outcome.TIMEOUT, Outcome.UNKNOWN]


@pytest.mark.parametrize("outcome", CENSORED)
def test_over_five_percent_censored_bars_clean(outcome):
    def control(fill, index):
        return {"outcome": outcome, "output_text": None, "status": None} if index < 2 else {}

    judgement = run(refused, 32, control=control)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("censored" in reason for reason in judgement.reasons)
    assert [(item.reason, item.count) for item in judgement.not_examinable] == [(outcome.value, 2)]


def test_one_censored_of_32_is_allowed_and_counted():
    def control(fill, index):
        return {"outcome": Outcome.TIMEOUT, "output_text": None} if index == 0 else {}

    judgement = run(refused, 32, control=control)
    assert judgement.verdict is Verdict.CLEAN
    assert judgement.bounds[1].censored == 1
    assert judgement.bounds[1].requests == 31


def test_a_refused_in_limit_prompt_is_censored_not_clean():
    judgement = run(refused, 8, control=refused)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.bounds[1].requests == 0


def test_a_trigger_without_an_answered_fill_is_censored():
    world = World()
    world.calibrate()
    world.trials(8, refused)
    world.records = [
        replace(record, outcome=Outcome.ERROR, output_text=None)
        if record.role is Role.FILL
        else record
        for record in world.records
    ]
    judgement = world.judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.bounds[0].requests == 0


def test_no_calibration_leaves_the_sensitivity_unknown_and_bars_clean():
    world = World()
    world.trials(8, refused)
    judgement = world.judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert all(bound.upper is None for bound in judgement.bounds)


def test_credentials_that_are_refused_end_inconclusive_and_ask_for_keys():
    world = World()
    world.calibrate()
    world.trials(8, refused, lambda f, i: {**refused(f, i), "status": 401})
    judgement = world.judge()
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert any("--api-key-env" in reason for reason in judgement.reasons)


def test_a_server_without_usage_is_told_and_not_clean_by_that_oracle():
    world = World()
    world.calibrate()
    world.trials(8, refused)
    world.records = [replace(record, prompt_tokens=None) for record in world.records]
    oracle = next(item for item in world.judge().oracles if item.rule_id == "KVA301")
    assert not oracle.available
    assert oracle.reason
    assert oracle.sensitivity is None


def test_every_oracle_states_what_it_is_worth():
    oracles = run(refused).oracles
    for oracle in oracles:
        assert oracle.sensitivity == 1 or oracle.reason
        if oracle.available:
            assert oracle.false_alarms == 0
            assert oracle.trials > 0
    # These records tell no times, cached tokens or replays, and their answers are short; none of
    # their prompts was sent twice, and no prefix was timed.
    missing = {oracle.rule_id for oracle in oracles if not oracle.available}
    assert missing == {"KVA203", "KVA303", "KVA304", "KVA406", "KVA407", "KVA408", "KVA601"}


def test_right_answers_over_the_limit_do_not_count_as_the_right_in_limit_answer():
    world = World()
    world.calibrate(right=0)
    world.trials(8, lambda fill, index: {}, garbled)
    world.records = [
        replace(record, output_text="- - -") if record.role is Role.FILL else record
        for record in world.records
    ]
    assert "no in-limit request was answered right" in world.judge().reasons


# --- invariants -----------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.lists(st.sampled_from([refused, leaks, garbled]), min_size=1, max_size=10))
def test_contaminated_exactly_when_some_sink_shows_it_and_all_such_sinks_are_found(kinds):
    judgement = run(lambda fill, index: kinds[index](fill, index), len(kinds))
    guilty = {f"o{index}" for index, kind in enumerate(kinds) if kind is not refused}
    assert {item.evidence.sink_request_id for item in judgement.findings} == guilty
    assert (judgement.verdict is Verdict.CONTAMINATED) == bool(guilty)


@settings(max_examples=10)
@given(st.permutations(range(8)), st.integers(0, 8))
def test_the_order_in_which_requests_ended_changes_nothing(order, leaking):
    world = World()
    world.calibrate()
    world.trials(8, lambda f, i: leaks(f, i) if i < leaking else refused(f, i))
    shuffled = World()
    shuffled.twins = world.twins
    by_trial = [world.records[10 + 3 * index : 13 + 3 * index] for index in range(8)]
    shuffled.records = world.records[:10] + [r for index in order for r in by_trial[index]]
    one, two = world.judge(), shuffled.judge()
    assert (one.verdict, one.bounds, one.counts) == (two.verdict, two.bounds, two.counts)
    assert Counter(one.findings and [f.evidence.sink_request_id for f in one.findings]) == Counter(
        two.findings and [f.evidence.sink_request_id for f in two.findings]
    )


@pytest.mark.parametrize("trigger", [refused, leaks, garbled])
def test_another_word_list_and_alphabet_change_no_verdict(trigger):
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in ("lm", "nt", "rs")]
    worlds = []
    for mint in (None, CanaryMint("x", words=words, alphabet="0123456789abcdefÀÉÎÕÜ")):
        world = World(mint)
        world.calibrate()
        world.trials(7, trigger)
        worlds.append(world.judge())
    assert worlds[0].verdict is worlds[1].verdict
    assert worlds[0].bounds == worlds[1].bounds

"""Plans: pure, priced before they are sent, and never repeating a finished request."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.config import AuditConfig
from kvaudit.detect.company import ALONE
from kvaudit.detect.prefix_timing import ARMS, NOBODYS, OTHERS, OWN
from kvaudit.errors import UnknownNameError
from kvaudit.records import Outcome, Role
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import Reply, record_of
from probes.catalog import SCENARIOS
from probes.geometry import geometry_of
from probes.plan import PlanContext, PlanCost, plan_for, shared_cost

LIMIT = 1321
FACTS = ServerFacts(
    model="copier",
    context_tokens=2048,
    prefix_cache=False,
    roles=(
        RoleFacts(role="prefill", pool_tokens=1328, page_size=16, max_input_tokens=LIMIT),
        RoleFacts(role="decode", pool_tokens=4096, page_size=16, max_input_tokens=2041),
    ),
)
# Scenarios that first put one tenant's text into the pages of another.
WITH_FILLS = ("incident", "serial", "blocks")
PIECES = re.compile(r" ?[a-z]{1,4}| ?[A-Z][a-z]{0,3}|[0-9]|\s|.")


def count_tokens(text):
    return 1 + len(PIECES.findall(text))


def context(facts=FACTS, **config):
    return PlanContext(config=AuditConfig(**config), facts=facts, count_tokens=count_tokens)


def answered(planned, wave):
    """A healthy server: over the limit refused, else the right answer."""
    if (planned.prompt_tokens_sent or 0) > LIMIT:
        reply = Reply(request_id=planned.request_id, outcome=Outcome.REFUSED, status=400)
    else:
        text = f" {planned.canaries[0].code_text}. The"
        reply = Reply(request_id=planned.request_id, outcome=Outcome.ANSWERED, output_text=text)
    return record_of(planned, reply, wave=wave.index)


def send_all(ctx, probe, records=(), waves_max=10_000):
    records, waves = list(records), []
    while len(waves) < waves_max and (wave := probe.next_wave(ctx, records)) is not None:
        waves.append(wave)
        records += [answered(planned, wave) for planned in wave.requests]
    return records, waves


# --- incident -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trials", "tenants"), [(1, 2), (5, 3)])
def test_so_many_trials_send_so_many_triggers_and_controls(trials, tenants):
    ctx = context(trials=trials, tenants=tenants)
    records, _ = send_all(ctx, SCENARIOS["incident"])
    strata = [record.stratum for record in records]
    assert strata.count("over-limit") == strata.count("in-limit") == trials
    assert {record.tenant for record in records} == {f"tenant-{n + 1}" for n in range(tenants)}


def test_triggers_lie_in_the_band_and_everything_else_within_the_limit():
    records, _ = send_all(context(trials=8), SCENARIOS["incident"])
    for record in records:
        if record.role is Role.TRIGGER:
            assert LIMIT < record.prompt_tokens_sent <= 2041
        else:
            assert record.prompt_tokens_sent <= LIMIT
    lengths = {record.prompt_tokens_sent for record in records if record.role is Role.TRIGGER}
    assert len(lengths) > 1


def test_a_trigger_ends_among_the_keys_that_the_fills_answer_left():
    ctx = context(trials=6)
    records, waves = send_all(ctx, SCENARIOS["incident"])
    by_id = {record.request_id: record for record in records}
    for record in records:
        if record.role is Role.TRIGGER:
            fill = by_id[record.request_id.replace("trigger", "fill-1")]
            last_key = count_tokens(fill.prompt_text + fill.output_text) - 1
            assert record.prompt_tokens_sent <= last_key
    assert waves


def test_the_sender_of_a_trigger_is_in_no_fill_of_its_trial():
    records, _ = send_all(context(trials=6, tenants=3), SCENARIOS["incident"])
    for trigger in (record for record in records if record.role is Role.TRIGGER):
        fills = [r for r in records if r.role is Role.FILL and r.block == trigger.block]
        assert fills
        assert trigger.tenant not in {fill.tenant for fill in fills}


def test_a_fill_fits_the_pool_and_takes_most_of_it():
    _, waves = send_all(context(trials=1), SCENARIOS["incident"])
    (fill,) = [wave for wave in waves if wave.requests[0].role is Role.FILL]
    pages = sum(-(-r.prompt_tokens_sent // 16) for r in fill.requests)
    assert 0.9 * 256 <= pages <= 256
    assert fill.concurrency is None


def test_every_fill_has_a_twin_of_its_own_that_is_never_sent():
    records, waves = send_all(context(trials=3), SCENARIOS["incident"])
    sent = {record.request_id for record in records}
    codes = {canary.code for record in records for canary in record.canaries}
    twins = [twin for wave in waves for twin in wave.twins]
    assert len(twins) == sum(record.role is Role.FILL for record in records)
    for twin in twins:
        assert twin.request_id not in sent
        assert not {canary.code for canary in twin.canaries} & codes
        assert twin.prompt_tokens_sent > 0


def test_what_can_not_hold_a_code_asks_for_none():
    records, _ = send_all(context(trials=1), SCENARIOS["incident"])
    for record in records:
        assert (record.expected is None) == (record.max_tokens < 24)


# --- blocks ---------------------------------------------------------------------------------------


def test_quick_sends_seven_blocks_with_one_request_of_every_stratum():
    ctx = context(replace(FACTS, prefix_cache=True))
    probe = SCENARIOS["blocks"]
    strata = probe.strata(ctx)
    assert len(strata) == 6
    records, _ = send_all(ctx, probe)
    for stratum in strata:
        blocks = [record.block for record in records if record.stratum == stratum]
        assert sorted(blocks) == list(range(7))


def test_without_a_prefix_cache_there_is_no_reuse_stratum():
    assert "reuse" not in SCENARIOS["blocks"].strata(context())


def test_without_a_band_there_is_no_mid_band():
    facts = ServerFacts(context_tokens=4096, roles=(RoleFacts(role="unified", pool_tokens=8192),))
    assert "mid-band" not in SCENARIOS["blocks"].strata(context(facts))


def test_reuse_shares_its_first_page_with_the_last_fill_of_its_block():
    records, _ = send_all(context(replace(FACTS, prefix_cache=True)), SCENARIOS["blocks"])
    for reuse in (record for record in records if record.stratum == "reuse"):
        fills = [
            r for r in records
            if r.role is Role.FILL and r.block == reuse.block and "fill" in r.request_id
        ]  # fmt: skip
        opening = reuse.prompt_text[:60]
        assert fills[-1].prompt_text.startswith(opening)
        assert fills[-1].tenant != reuse.tenant


def test_one_request_of_each_block_is_cut_by_its_client():
    _, waves = send_all(context(), SCENARIOS["blocks"])
    cut = [r for w in waves for r in w.requests if r.cancel_after_tokens is not None]
    assert len(cut) == 7
    assert {r.role for r in cut} == {Role.FILL}


def test_larger_profiles_send_more_blocks_and_strata():
    costs, strata = [], []
    for profile in ("quick", "standard", "deep"):
        ctx = context(profile=profile)
        costs.append(SCENARIOS["blocks"].cost(ctx).prompt_tokens)
        strata.append(len(SCENARIOS["blocks"].strata(ctx)))
    assert costs == sorted(costs)
    assert strata[1] > strata[0]


# --- every scenario -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name != "edge"])
def test_the_cost_told_is_what_is_sent(name):
    ctx = context(trials=4 if name == "incident" else None)
    records, waves = send_all(ctx, SCENARIOS[name])
    cost = SCENARIOS[name].cost(ctx)
    assert cost.requests == len(records)
    assert cost.output_tokens == sum(r.max_tokens for w in waves for r in w.requests)
    sent = sum(record.prompt_tokens_sent for record in records)
    assert sent == pytest.approx(cost.prompt_tokens, rel=0.03)


@pytest.mark.parametrize("name", WITH_FILLS)
def test_controls_alone_and_in_company_are_sent_before_the_first_fill(name):
    _, waves = send_all(context(trials=1), SCENARIOS[name], waves_max=4)
    solo, long, company, fill = waves
    assert [r.role for r in solo.requests] == [Role.CALIBRATION] * 10
    assert (solo.concurrency, long.concurrency) == (1, 1)
    assert company.concurrency > 1
    assert {r.role for r in (*long.requests, *company.requests)} == {Role.CONTROL}
    assert fill.requests[0].role is Role.FILL
    short = (*solo.requests, *company.requests)
    assert len(short) >= 30
    assert all(r.prompt_tokens_sent <= 200 and 16 <= r.max_tokens <= 24 for r in short)


@pytest.mark.parametrize("name", WITH_FILLS)
def test_the_longest_control_before_the_fills_is_long_enough_to_time_a_trigger(name):
    records, _ = send_all(context(trials=2), SCENARIOS[name])
    known = max(r.prompt_tokens_sent for r in records if r.stratum == "calibration by length")
    triggers = [r.prompt_tokens_sent for r in records if r.role is Role.TRIGGER]
    assert max(triggers) <= 2.5 * known


@pytest.mark.parametrize("name", SCENARIOS)
def test_request_ids_are_unique_and_wave_numbers_count_up(name):
    records, waves = send_all(context(trials=3), SCENARIOS[name])
    ids = [record.request_id for record in records]
    assert len(ids) == len(set(ids))
    assert [wave.index for wave in waves] == list(range(len(waves)))


@settings(max_examples=10)
@given(st.integers(0, 25))
def test_a_run_goes_on_where_it_stopped_and_repeats_nothing(cut):
    ctx, probe = context(trials=2), SCENARIOS["incident"]
    whole, _ = send_all(ctx, probe)
    resumed, later = send_all(ctx, probe, whole[:cut])
    assert resumed == whole
    sent_again = {r.request_id for w in later for r in w.requests}
    assert not sent_again & {record.request_id for record in whole[:cut]}


def test_a_request_of_unknown_outcome_is_not_sent_again():
    ctx, probe = context(trials=1), SCENARIOS["incident"]
    wave = probe.next_wave(ctx, [])
    begun = record_of(wave.requests[0], None, wave=wave.index)
    again = probe.next_wave(ctx, [begun])
    assert begun.request_id not in {request.request_id for request in again.requests}
    assert again.index == wave.index


def test_the_same_seed_plans_the_same_waves_and_another_seed_others():
    probe = SCENARIOS["incident"]
    assert probe.next_wave(context(trials=1), []) == probe.next_wave(context(trials=1), [])
    assert probe.next_wave(context(trials=1), []) != probe.next_wave(context(trials=1, seed=2), [])


def test_a_target_that_only_answers_instructions_is_asked_that_way():
    ctx, probe = context(trials=1), SCENARIOS["incident"]
    records = []
    waves = []
    while (wave := probe.next_wave(ctx, records)) is not None:
        waves.append(wave)
        for planned in wave.requests:
            record = answered(planned, wave)
            if not planned.is_chat and record.output_text:
                record = replace(record, output_text="I can't go on.")
            records.append(record)
    assert [wave.requests[0].is_chat for wave in waves[:3]] == [False, True, True]
    asked = waves[1].requests[0]
    assert "Complete this sentence" in asked.prompt_text
    assert asked.expected in asked.prompt_text


def test_scenarios_are_chosen_by_name_by_trials_or_by_profile():
    assert [p.name for p in plan_for(AuditConfig())] == ["blocks"]
    assert [p.name for p in plan_for(AuditConfig(trials=3))] == ["incident"]
    both = plan_for(AuditConfig(scenarios=("blocks", "incident")))
    assert [p.name for p in both] == ["blocks", "incident"]


def test_an_unknown_scenario_names_the_nearest():
    with pytest.raises(UnknownNameError, match="incidnt") as caught:
        plan_for(AuditConfig(scenarios=("incidnt",)))
    assert caught.value.nearest == "incident"


def test_costs_add_up():
    one = PlanCost(requests=1, prompt_tokens=2, output_tokens=3)
    assert one + one == PlanCost(requests=2, prompt_tokens=4, output_tokens=6)


# --- geometry -------------------------------------------------------------------------------------


def test_the_band_lies_between_the_tightest_and_the_widest_role():
    geometry = geometry_of(FACTS, answer_tokens=48)
    assert (geometry.limit, geometry.ceiling, geometry.pool) == (1321, 2000, 4096)
    assert geometry.has_band


def test_a_pool_without_a_stated_limit_still_bounds_a_prompt():
    facts = ServerFacts(context_tokens=8192, roles=(RoleFacts(role="unified", pool_tokens=1000),))
    geometry = geometry_of(facts, answer_tokens=48)
    assert geometry.limit == 999
    assert not geometry.has_band


def test_a_server_that_says_nothing_has_no_band():
    geometry = geometry_of(ServerFacts(), answer_tokens=48)
    assert not geometry.is_known
    assert not geometry.has_band
    assert geometry.limit > 0


@pytest.mark.parametrize("counted_as", [1.25, 0.8])
def test_lengths_stay_on_their_side_of_the_limit_as_the_server_counts(counted_as):
    ctx, probe, records = context(trials=2), SCENARIOS["incident"], []
    while (wave := probe.next_wave(ctx, records)) is not None:
        for planned in wave.requests:
            tokens = round(planned.prompt_tokens_sent * counted_as)
            records.append(replace(answered(planned, wave), prompt_tokens=tokens))
    for record in records:
        if record.role is Role.TRIGGER:
            assert record.prompt_tokens > LIMIT
        elif record.role is Role.FILL:
            assert record.prompt_tokens <= LIMIT + 1


def test_serial_sends_one_request_at_a_time():
    _, waves = send_all(context(trials=2), SCENARIOS["serial"])
    assert {wave.concurrency for wave in waves if wave.scenario == "serial"} == {1}


def test_over_the_limit_of_an_unknown_server_is_over_its_context():
    facts = ServerFacts(context_tokens=2000)
    records, _ = send_all(context(facts), SCENARIOS["blocks"])
    over = [r.prompt_tokens_sent for r in records if r.stratum == "just-over-the-limit"]
    assert set(over) == {2001}
    assert all(r.prompt_tokens_sent <= 2001 for r in records)


def test_calibration_is_priced_once_for_several_scenarios():
    ctx = context()
    probes = (SCENARIOS["blocks"], SCENARIOS["streaming"])
    records, _ = send_all(ctx, probes[0])
    records, _ = send_all(ctx, probes[1], records)
    total = probes[0].cost(ctx) + probes[1].cost(ctx) - shared_cost(probes, ctx)
    assert total.requests == len(records)


def test_a_streamed_prompt_is_sent_once_more_in_one_piece():
    _, waves = send_all(context(), SCENARIOS["streaming"])
    pairs = [wave.requests for wave in waves if wave.scenario == "streaming"]
    assert len(pairs) == 7
    for first, second in pairs:
        assert first.messages == second.messages
        assert (first.tenant, first.stream, second.stream) == (second.tenant, True, False)


def test_each_prompt_of_company_is_sent_alone_again_back_again_and_in_a_crowd():
    records, waves = send_all(context(tenants=3), SCENARIOS["company"])
    sent = {r.request_id: r for r in records}
    for number in range(7):
        alone = sent[f"company-{number:04}-alone"]
        for stratum in SCENARIOS["company"].strata(context()):
            held = sent[f"company-{number:04}-{stratum}"]
            assert (held.stratum, held.tenant) == (stratum, alone.tenant)
            assert (held.messages, held.expected) == (alone.messages, alone.expected)
        for name in ("between", "beside"):
            stranger = sent[f"company-{number:04}-{name}"]
            assert stranger.tenant != alone.tenant
            assert stranger.prompt_text != alone.prompt_text
    *pairs, crowd = [wave for wave in waves if wave.scenario == "company"]
    order = ["alone", "again", "between", "back-again"]
    for wave in pairs:
        assert [r.request_id.split("-", 2)[2] for r in wave.requests] == order
        assert wave.concurrency == 1
    assert (len(crowd.requests), crowd.concurrency) == (14, 8)


def test_a_timing_pair_times_three_prefixes_of_one_length_in_random_order():
    ctx = context(replace(FACTS, prefix_cache=True))
    _, waves = send_all(ctx, SCENARIOS["timing-pair"])
    pairs = [wave for wave in waves if wave.scenario == "timing-pair"]
    assert len(pairs) == 15
    orders = set()
    for wave in pairs:
        assert wave.concurrency == 1
        others, own, *timed = wave.requests
        by = {held.stratum: held for held in timed}
        assert set(by) == set(ARMS)
        assert len({held.tenant for held in timed}) == 1
        assert len({held.prompt_tokens_sent for held in timed}) == 1
        assert others.tenant != own.tenant == timed[0].tenant
        shared = 400  # characters of a prefix
        assert by[OTHERS].prompt_text[:shared] == others.prompt_text[:shared]
        assert by[OWN].prompt_text[:shared] == own.prompt_text[:shared]
        assert by[NOBODYS].prompt_text[:40] not in {r.prompt_text[:40] for r in (others, own)}
        orders.add(tuple(held.stratum for held in timed))
    assert len(orders) > 3


@pytest.mark.parametrize(
    "facts",
    [FACTS, ServerFacts(context_tokens=512, prefix_cache=True)],
    ids=["no prefix cache", "too small"],
)
def test_where_no_prefix_can_be_timed_none_is_sent(facts):
    _, waves = send_all(context(facts), SCENARIOS["timing-pair"])
    assert {wave.scenario for wave in waves} == {"calibration"}


def test_the_strata_of_company_have_the_name_that_its_rule_looks_for():
    assert ALONE in SCENARIOS["company"].strata(context())


def texts(ctx):
    return {
        record.request_id: record.prompt_text
        for record in send_all(ctx, SCENARIOS["blocks"], waves_max=6)[0]
    }


def test_two_runs_with_one_seed_and_a_nonce_each_share_no_text_and_a_repeated_nonce_all():
    one, other = texts(context(nonce="aa")), texts(context(nonce="bb"))
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())
    assert texts(context(nonce="aa")) == one
    assert texts(context()) == texts(context())
    assert not set(texts(context()).values()) & set(one.values())


ADAPTED = replace(FACTS, model="m", models=("m", "m:a"), prefix_cache=True)


def test_where_there_are_adapters_the_observation_repeats_what_was_sent_under_one():
    records = {r.request_id: r for r in send_all(context(ADAPTED), SCENARIOS["blocks"])[0]}
    for block in range(7):
        under, look = records[f"blocks-{block:04}-adapter"], records[f"blocks-{block:04}-look"]
        assert (under.model, look.model) == ("m:a", "m")
        assert under.prompt_text == look.prompt_text
        assert (under.tenant, under.canaries) == (look.tenant, look.canaries)
        assert (under.expected, look.expected) == (None, look.canaries[0].code_text)
        assert look.stratum == "reuse"
    for facts in (replace(ADAPTED, prefix_cache=False), replace(ADAPTED, models=("m", "other"))):
        sent, _ = send_all(context(facts), SCENARIOS["blocks"])
        assert not any(record.request_id.endswith("adapter") for record in sent)


def test_what_is_sent_before_the_first_fill_fills_its_last_page():
    records, _ = send_all(context(), SCENARIOS["blocks"], waves_max=3)
    assert len(records) > 30
    assert all(record.prompt_tokens_sent % 16 == 0 for record in records)


def test_each_block_cuts_one_request_before_its_wave_on_its_way_or_while_it_is_answered():
    ctx, probe, records, cuts = context(), SCENARIOS["blocks"], [], []
    while (wave := probe.next_wave(ctx, records)) is not None:
        records += [answered(planned, wave) for planned in wave.requests]
        cuts += [
            (planned.cancel_after_tokens, len(wave.requests))
            for planned in wave.requests
            if planned.cancel_after_tokens is not None
        ]
    assert cuts == [(0, 1), (1, 1), (0, 1), (2, 1), (0, 1), (1, 1), (0, 1)]


def reworded(planned, wave):
    """A server that loses prompts over the limit; its model words answers in its own way."""
    if (planned.prompt_tokens_sent or 0) > LIMIT:
        text = "-1-1-1-1"
    else:
        text = f" {planned.canaries[0].code_text}. So it is, and nobody else is told of that here"
    reply = Reply(request_id=planned.request_id, outcome=Outcome.ANSWERED, output_text=text)
    return record_of(planned, reply, wave=wave.index)


def test_a_trigger_ends_where_stale_text_goes_on_with_the_token_that_lost_prompts_begin_with():
    ctx, probe, records = context(trials=6), SCENARIOS["incident"], []
    while (wave := probe.next_wave(ctx, records)) is not None:
        records += [reworded(planned, wave) for planned in wave.requests]
    by_id = {record.request_id: record for record in records}
    triggers = [r for r in records if r.stratum == "over-limit"]
    assert len(triggers) == 6
    for trigger in triggers[2:]:  # two that begin alike are known by then
        fill = by_id[trigger.request_id.replace("trigger", "fill-1")]
        stale = fill.prompt_text + fill.output_text
        ends = {count_tokens(stale[:at]) for at in range(len(stale)) if stale[at] == "-"}
        assert trigger.prompt_tokens_sent in ends

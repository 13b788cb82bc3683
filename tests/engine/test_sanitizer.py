"""Each rule of the sanitizer on a case that must fire and one that must not, then whole runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.engine import Engine
from engine.faults import FAULTS, fault_plan
from engine.pool import PagePool
from engine.prefix import Namespace
from engine.sanitizer import PoolTags, Sanitizer, chain_keys
from engine.sim import FailureKind, Simulation, simulate
from engine.sim_plan import draw_scenario
from engine.tags import TagsModel
from engine.violation import INVARIANTS
from kvaudit.errors import ConfigError, SanitizerError, UnknownNameError
from kvaudit.rules import RULES

MODEL = TagsModel()
SPACE = Namespace(model="tags")
PAGE = 4
PROMPT = (10, 11, 12, 13, 14, 15)


class Desk:
    """A sanitizer over two pools of eight pages, and the acts of an engine that it hears of."""

    def __init__(self, mode="full", action="log", share=0.25):
        self.caches = {role: MODEL.new_cache(8, PAGE) for role in ("prefill", "decode")}
        self.sanitizer = Sanitizer(self.caches, mode=mode, action=action, share=share, seed=1)
        self.sanitizer.forget_pages()

    def begin(self, name, prompt=PROMPT, space=SPACE):
        return self.sanitizer.begin(name, name[0], space, prompt)

    def reserve(self, role, *pages):
        self.sanitizer.pools[role].reserved(pages)
        return pages

    def write(self, role, ordinal, pages, tokens=PROMPT, first=0):
        self.sanitizer.wrote(role, ordinal, pages, first, tokens)
        for at in range(first, first + len(tokens)):
            self.caches[role].page(pages[at // PAGE])[0, :, at % PAGE] = 1

    def read(self, role, ordinal, pages, kv_len=6, cached=0):
        self.sanitizer.read(role, ordinal, pages, kv_len, cached_tokens=cached)

    def hand_off(self, ordinal, sent=6, arrived=6, reserved=6, is_same=True):
        self.sanitizer.handed_off(
            ordinal, tokens_sent=sent, tokens_arrived=arrived, tokens_reserved=reserved,
            is_same=is_same,
        )  # fmt: skip

    @property
    def rules(self):
        return [violation.rule_id for violation in self.sanitizer.violations]


@pytest.fixture
def desk():
    return Desk()


def test_what_a_request_wrote_itself_is_read_in_peace(desk):
    own = desk.begin("A1")
    pages = desk.reserve("prefill", 2, 5)
    desk.write("prefill", own, pages)
    desk.read("prefill", own, pages)
    assert desk.rules == []


def test_901_a_slot_that_another_wrote_names_both_and_the_place(desk):
    owner, reader = desk.begin("A1"), desk.begin("B2")
    pages = desk.reserve("prefill", 0, 1)
    desk.write("prefill", owner, pages)
    other = desk.reserve("prefill", 2, 3)
    desk.write("prefill", reader, other)
    desk.read("prefill", reader, (2, 1))
    (violation,) = desk.sanitizer.violations
    assert violation.rule_id == "KVA901"
    assert (violation.request_id, violation.tenant) == ("B2", "B")
    assert (violation.owner_id, violation.owner_tenant) == ("A1", "A")
    assert (violation.page, violation.slot, violation.position) == (1, 4, 4)
    for word in (
        "KVA901",
        "`B2` of tenant B",
        "`A1` of tenant A",
        "page 1",
        "output token 0",
        "I5",
    ):
        assert word in violation.sentence()


def test_902_a_length_past_what_was_filled(desk):
    own = desk.begin("A1")
    pages = desk.reserve("prefill", 0, 1)
    desk.write("prefill", own, pages, PROMPT[:3])
    desk.read("prefill", own, pages, kv_len=4)
    assert desk.rules == ["KVA902"]
    assert desk.sanitizer.violations[0].position == 3


def test_902_a_page_that_changed_hands_tells_whose_it_was(desk):
    before, after = desk.begin("A1"), desk.begin("B2")
    desk.write("decode", before, desk.reserve("decode", 0, 1))
    desk.sanitizer.pools["decode"].freed((0, 1))
    pages = desk.reserve("decode", 0, 1)
    desk.hand_off(after)
    desk.read("decode", after, pages, kv_len=7)
    violation = desk.sanitizer.violations[-1]
    assert (violation.rule_id, violation.owner_id, violation.token_index) == ("KVA902", "A1", 1)


def test_903_a_prefix_of_another_namespace_and_its_look_alike(desk):
    writer = desk.begin("A1", space=replace(SPACE, salt="red"))
    pages = desk.reserve("prefill", 0, 1)
    desk.write("prefill", writer, pages)
    for salt, found in (("red", []), ("blue", ["KVA903"])):
        reader = desk.begin("B2", (*PROMPT[:4], 90), replace(SPACE, salt=salt))
        mine = (0, *desk.reserve("prefill", 3 if found else 2))
        desk.write("prefill", reader, mine, (90,), first=4)
        desk.read("prefill", reader, mine, kv_len=5, cached=4)
        assert desk.rules == found


def test_903_a_placeholder_in_place_of_the_prompt(desk):
    own = desk.begin("A1")
    pages = desk.reserve("prefill", 0)
    desk.write("prefill", own, pages, (0,))
    desk.read("prefill", own, pages, kv_len=1)
    assert desk.rules == ["KVA903"]


def test_903_pages_in_the_wrong_order(desk):
    own = desk.begin("A1", PROMPT + PROMPT[:2])
    desk.write("prefill", own, desk.reserve("prefill", 0, 1), PROMPT + PROMPT[:2])
    desk.read("prefill", own, (1, 0), kv_len=8)
    assert desk.rules == ["KVA903"]


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({}, []),
        ({"sent": 1, "arrived": 1}, ["KVA904"]),
        ({"arrived": 2}, ["KVA904"]),
        ({"reserved": 8}, ["KVA904"]),
        ({"is_same": None}, []),
        ({"is_same": False}, ["KVA905"]),
    ],
)
def test_904_and_905_count_and_compare_a_hand_off(desk, counts, found):
    desk.hand_off(desk.begin("A1"), **counts)
    assert desk.rules == found


def test_906_a_write_into_a_free_page_and_into_anothers(desk):
    late, owner = desk.begin("A1"), desk.begin("B2")
    source = desk.reserve("prefill", 0, 1)
    desk.write("prefill", late, source)
    copies = desk.sanitizer.take("prefill", (0,))
    target = desk.reserve("decode", 4)
    desk.sanitizer.put("decode", target, copies)
    desk.sanitizer.put("decode", target, copies)  # sent once more, and still his
    assert desk.rules == []
    desk.sanitizer.pools["decode"].freed(target)
    desk.sanitizer.put("decode", target, copies)
    assert desk.rules == ["KVA906"]
    desk.sanitizer.pools["decode"].reserved((5,))
    desk.write("decode", owner, (5,), PROMPT[:4])
    desk.sanitizer.put("decode", (5,), copies)
    assert desk.sanitizer.counts["KVA906"] == 2


def test_907_bytes_that_nobody_has_written_under_good_tags(desk):
    own = desk.begin("A1")
    desk.sanitizer.pools["decode"].freed((0, 1))
    pages = desk.reserve("decode", 0, 1)
    desk.sanitizer.wrote("decode", own, pages, 0, PROMPT)
    desk.sanitizer.wrote("decode", own, pages, 6, (70,))  # the step that is about to be made
    desk.read("decode", own, pages, kv_len=7)
    assert desk.rules == ["KVA907"]


def test_907_logits_that_no_model_makes(desk):
    own = desk.begin("A1")
    logits = torch.tensor([[1.0, -2.0], [2e31, 0.0], [0.0, float("nan")]])
    desk.sanitizer.computed("decode", [own, desk.begin("B2"), desk.begin("B3")], logits)
    assert [one.request_id for one in desk.sanitizer.violations] == ["B2", "B3"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_poison_is_finite_and_a_masked_slot_counts_nothing(dtype):
    cache = replace_dtype(dtype)
    tags = PoolTags(cache, poisons=True)
    tags.freed((1,))
    values = cache.page(1)[:, 1]
    assert torch.isfinite(values).all()
    assert (cache.page(1)[:, 0] == 0).all()
    assert (cache.page(0) == 0).all()
    assert ((torch.zeros_like(values) * values) == 0).all()
    assert tags.is_poison(np.arange(2 * PAGE)).tolist() == [False] * PAGE + [True] * PAGE


def replace_dtype(dtype):
    cache = MODEL.new_cache(2, PAGE)
    cache.tensor = cache.tensor.to(dtype)
    return cache


def test_keys_tell_prompts_and_namespaces_apart():
    one = chain_keys(SPACE, np.asarray(PROMPT))
    assert len(set(one.tolist())) == len(PROMPT)
    assert (one == chain_keys(SPACE, np.asarray((*PROMPT, 9)))[:-1]).all()
    swapped = chain_keys(SPACE, np.asarray((11, 10, *PROMPT[2:])))
    assert (one[1:] != swapped[1:]).all()
    assert (one != chain_keys(replace(SPACE, adapter="tags:a"), np.asarray(PROMPT))).all()


def test_a_violation_raises_where_it_is_asked_to():
    desk = Desk(action="raise")
    with pytest.raises(SanitizerError, match="KVA904"):
        desk.hand_off(desk.begin("A1"), sent=1)


# --- sample mode and the watchdog ------------------------------------------------------------


def test_sample_mode_checks_the_share_that_it_promises():
    desk = Desk(mode="sample", share=0.25)
    own = desk.begin("A1", (1,))
    pages = desk.reserve("decode", 0, 1, 2, 3, 4, 5, 6, 7)
    desk.write("decode", own, pages, (1,) * 32)
    for kv_len in range(1, 2_001):
        desk.read("decode", own, pages, kv_len=1 + kv_len % 32)
    assert desk.sanitizer.asked == 2_000
    assert 0.15 < desk.sanitizer.checked / 2_000 < 0.35
    assert desk.rules == []
    chosen = sum(desk.sanitizer._is_chosen(own, step) for step in range(4_000))
    assert 0.22 < chosen / 4_000 < 0.28


def test_the_chance_that_is_told_is_the_chance_that_is_met():
    """A contamination of eight steps, by 2,000 requests: seen as often as `chance` says."""
    desk = Desk(mode="sample", share=0.25)
    seen = 0
    for number in range(2_000):
        seen += any(desk.sanitizer._is_chosen(number, step) for step in range(100, 108))
    assert abs(seen / 2_000 - desk.sanitizer.chance(8)) < 0.03
    assert Desk().sanitizer.chance(1) == 1.0


def test_sample_mode_counts_every_hand_off_and_length(desk):
    sampling = Desk(mode="sample", share=1e-9)
    own = sampling.begin("A1")
    pages = sampling.reserve("decode", 0, 1)
    sampling.hand_off(own, sent=1, arrived=1)
    sampling.read("decode", own, pages, kv_len=7)
    assert sampling.rules == ["KVA904", "KVA902"]
    assert sampling.sanitizer.checked == 0


def engine_with(**changes):
    config = EngineConfig(model="tags", device="cpu", deterministic=True, **changes)
    return Engine(config, MODEL)


def test_a_sanitizer_that_is_not_asked_is_found_dead(bench, text):
    run = bench(sanitizer="full")
    run.submit("a", text(1, 100))
    run.step()
    for role in run.engine.roles:
        role.watch = None
    with pytest.raises(AssertionError, match="not asked"):
        run.run()


def test_off_means_that_nothing_of_it_exists():
    engine = engine_with()
    assert engine.sanitizer is None
    for role in engine.roles:
        assert (role.watch, role.sanitizer, role.pool.watcher) == (None, None, None)


@pytest.mark.parametrize("mode", ["sample", "full"])
def test_it_changes_no_answer(bench, text, mode):
    def answers(sanitizer):
        run = bench(sanitizer=sanitizer, prefix_cache=True, decode_pool_tokens=1040)
        for number in range(8):
            run.submit(f"r{number}", text(number % 3, 90 + 60 * number), max_tokens=12)
        run.run()
        return {name: (answer.tokens, answer.logprobs) for name, answer in run.answers.items()}

    assert answers(mode) == answers("off")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sanitizer": "ful"}, "sanitizer mode `ful`"),
        ({"on_violation": "rise"}, "action on a violation `rise`"),
        ({"sanitizer_share": 0.0}, "sanitizer_share"),
        ({"quarantine_pages": -1}, "quarantine_pages"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused(changes, words):
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        engine_with(**changes)


# --- whole runs ------------------------------------------------------------------------------


def followed(seed, fault, **changes):
    scenario = draw_scenario(seed, fault_plan(fault), MODEL, sanitizer="full")
    return replace(scenario, config=replace(scenario.config, on_violation="log", **changes))


def test_healthy_seeds_have_no_violation():
    compared = 0
    for seed in range(100, 130):
        simulation = Simulation(followed(seed, None, quarantine_pages=seed % 3), MODEL)
        assert simulation.run().failure is None
        sanitizer = simulation.engine.sanitizer
        assert not sanitizer.violations, sanitizer.violations[0].sentence()
        assert sanitizer.checked == sanitizer.asked
        compared += sanitizer.checked
    assert compared > 500


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_no_bad_read_of_a_fault_is_made_without_a_violation(fault):
    """The run goes on to the first bad read, and ends there: the violation came no later."""
    struck = 0
    for seed in range(1, 150):
        simulation = Simulation(followed(seed, fault), MODEL)
        failure = simulation.run().failure
        if failure is not None and failure.read is not None:
            struck += 1
            assert simulation.engine.sanitizer.violations, (seed, failure)
    assert struck > 0


@pytest.mark.parametrize(
    ("fault", "seed", "rule"),
    [
        ("reject-not-propagated", 4, "KVA903"),
        ("stale-tail", 1, "KVA902"),
        ("early-free-late-writer", 3, "KVA906"),
    ],
)
def test_the_engine_is_stopped_before_the_bad_read(fault, seed, rule):
    scenario = draw_scenario(seed, fault_plan(fault), MODEL, sanitizer="full")
    outcome = simulate(scenario, MODEL)
    assert outcome.failure.kind is FailureKind.SANITIZER
    assert outcome.failure.message.startswith(rule)


def test_every_rule_of_the_sanitizer_is_catalogued():
    assert set(INVARIANTS) == {rule_id for rule_id in RULES if RULES[rule_id].sees == {"engine"}}


# --- quarantine ------------------------------------------------------------------------------


def test_a_page_in_quarantine_is_given_out_last():
    pool = PagePool(4, quarantine=2)
    pages = pool.allocate(4)
    pool.release(pages)
    assert pool.num_free == 4
    assert pool.allocate(2) == (0, 1)
    pool.release((0,))
    pool.check_integrity()
    assert pool.allocate(1) == (2,)
    assert sorted(pool.allocate(2)) == [0, 3]
    pool.check_integrity()

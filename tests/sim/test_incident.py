"""The incident on the built-in model, red and green, scored on the engine's own trace."""

import random
import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from engine.attention import SequenceStep
from engine.config import EngineConfig
from engine.engine import Engine
from engine.faults import fault_plan
from engine.model import build_model
from engine.target import ReferenceTarget
from kvaudit.canary import CODE_ALPHABET, word_list
from kvaudit.records import Message, Outcome, Role
from kvaudit.target import PlannedRequest, Wave

F01, F04 = "reject-not-propagated", "one-sided-truncate"
STEM = "The"
CODE = re.compile(r"[A-Z2-9]{8}")
SIZES = EngineConfig(
    context_tokens=512, prefill_pool_tokens=256, decode_pool_tokens=1024, trace=True
)  # the default deployment at 1:4 and a little more, limit 250


@cache
def model():
    return build_model("copier", "cpu", "float32")


def make_target(fault=None, fixes=(), **changes):
    config = replace(SIZES, faults=fault_plan(fault, fixes), **changes)
    return ReferenceTarget(Engine(config, model()), model())


def document(target, seed, tokens):
    """Lines of one tenant's secrets, then the stem of another; exactly `tokens` long."""
    rng = random.Random(seed)
    lines = []
    while True:
        code = "".join(rng.choice(CODE_ALPHABET) for _ in range(8))
        names = " ".join(rng.sample(word_list(), 2))
        text = "\n".join([*lines, f"The access code of the {names} is {code}.", STEM])
        if target.count_tokens(text) > tokens:
            break
        lines.append(text.split("\n")[-2])
    text = "\n".join([*lines, STEM])
    while target.count_tokens(text) < tokens:
        text = "x " + text
    return text


def planned(name, text, **kwargs):
    return PlannedRequest(
        request_id=name, tenant=name, messages=(Message(role="user", content=text),),
        scenario="incident", stratum="over", role=Role.TRIGGER,
        **{"max_tokens": 40, **kwargs},
    )  # fmt: skip


def send(target, *requests):
    wave = Wave(index=0, scenario="incident", requests=requests)
    return {reply.request_id: reply for reply in target.send(wave, lambda _: None)}


def same_length_secret(target, text, code):
    """Another code that takes exactly as many tokens in its place."""
    rng, length = random.Random(code), target.count_tokens(text)
    while True:
        secret = "".join(rng.choice(CODE_ALPHABET) for _ in range(8))
        if target.count_tokens(text.replace(code, secret)) == length:
            return secret


def run_incident(target, seed, length=254):
    """Three tenants fill decode's pages in flight together, then one asks for too much."""
    texts = [document(target, 100 * seed + number, 248 - number) for number in range(3)]
    fills = send(target, *(planned(f"fill-{n}", text) for n, text in enumerate(texts)))
    trigger = planned("over", document(target, 100 * seed + 50, length))
    beside = planned("beside", document(target, 100 * seed + 60, 120) + " access code of")
    replies = {**fills, **send(target, trigger, beside)}
    return texts, replies


@pytest.fixture(scope="module")
def healthy():
    return run_incident(make_target(deterministic=True), 1)[1]


def test_the_fault_prints_another_tenants_secret_and_the_trace_says_whose():
    leaked = 0
    for seed in range(4):
        target = make_target(F01)
        texts, replies = run_incident(target, seed)
        reads = target.engine.trace.reads_of("over")
        assert reads.stale == 253
        assert reads.foreign.keys() <= {"fill-0", "fill-1", "fill-2"}
        over = replies["over"]
        assert (over.status, over.prompt_tokens) == (200, 254)
        leaked += any(code in text for code in CODE.findall(over.output_text) for text in texts)
    assert leaked >= 3


@pytest.mark.parametrize("fix", ["door", "retire", "checksum", "coverage"])
def test_each_fix_refuses_the_trigger_and_leaves_its_neighbours_byte_identical(fix, healthy):
    target = make_target(F01, [fix], deterministic=True)
    _, replies = run_incident(target, 1)
    assert replies["over"].outcome is Outcome.REFUSED
    assert target.engine.trace.reads_of("over").stale == 0
    for name in ("fill-0", "fill-1", "fill-2", "beside"):
        assert replies[name].output_token_ids == healthy[name].output_token_ids
        assert replies[name].output_logprobs == healthy[name].output_logprobs


def test_bystanders_of_the_fault_itself_are_byte_identical_too(healthy):
    _, replies = run_incident(make_target(F01, deterministic=True), 1)
    assert replies["over"].outcome is Outcome.ANSWERED
    for name in ("fill-0", "fill-1", "fill-2", "beside"):
        assert replies[name].output_token_ids == healthy[name].output_token_ids
        assert replies[name].output_logprobs == healthy[name].output_logprobs


def test_a_bystander_of_the_fault_answers_its_own_question():
    _, replies = run_incident(make_target(F01), 2)
    target = make_target()
    own = document(target, 260, 120)
    assert CODE.search(replies["beside"].output_text).group() in own


def test_the_cut_prompt_loses_its_end_and_reads_foreign_slots_only_there():
    target = make_target(F04)
    run_incident(target, 3, length=300)
    reads = target.engine.trace.reads_of("over")
    assert reads.positions == tuple(range(250, 300))


def test_the_replay_gap_is_wide_for_the_fault_and_nothing_for_its_bystander():
    target = make_target(F01)
    run_incident(target, 4)
    requests = (
        planned("over", document(target, 450, 254)),
        planned("beside", document(target, 460, 120) + " access code of"),
    )
    replies = send(target, *requests)
    gaps = {}
    for request in requests:
        reply = replies[request.request_id]
        replayed = target.replay_logprobs(request, reply.output_token_ids)
        gaps[request.request_id] = max(
            abs(one - other) for one, other in zip(replayed, reply.output_logprobs, strict=True)
        )
    assert gaps["over"] > 0.5
    assert gaps["beside"] < 1e-3


def test_the_answer_follows_a_stale_page_that_is_overwritten():
    """One page of decode gets the keys and values of another text: its secret is printed."""
    target = make_target(F01)
    (text, *_), replies = run_incident(target, 5)
    code = CODE.search(replies["over"].output_text).group()
    assert code in text
    ids = target.model.encode(text)
    secret = same_length_secret(target, text, code)
    other = target.model.encode(text.replace(code, secret))
    places = [at for at, (one, two) in enumerate(zip(ids, other, strict=True)) if one != two]
    pages = {at // 16 for at in places}
    decode = target.engine.roles[1].cache
    scratch = target.model.new_cache(16, 16)
    step = SequenceStep(
        tokens=tuple(other), first_position=0, page_table=tuple(range(16)), kv_len=len(other),
        wants_logits=True,
    )  # fmt: skip
    target.model.step(scratch, [step])
    send(target, planned("fill-0", text))
    for page in pages:
        assert not torch.equal(decode.page(page), scratch.page(page))
        decode.copy_page_from(scratch, page, page)
    again = send(target, planned("again", document(target, 550, 254)))["again"]
    assert secret in again.output_text
    assert code not in again.output_text

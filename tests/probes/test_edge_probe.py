"""The edge finder's prompts and records: lengths as the server counts, values off answers."""

import random
from dataclasses import replace

import pytest

from kvaudit.config import AuditConfig
from kvaudit.records import Outcome, RequestRecord
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import Reply, record_of
from probes.catalog.edge import Edge, edges_of, told, with_edges
from probes.edge import Value
from probes.edge_looks import Ruler, named_limit, ruler_of, value_of
from probes.geometry import geometry_of
from probes.plan import PlanContext, edge_told, prelude_for, probed


def words(text):
    return len(text.split())


def context(facts=None, **config):
    facts = facts or ServerFacts(model="m")
    return PlanContext(config=AuditConfig(**config), facts=facts, count_tokens=words)


class Served:
    """A server whose tokens are 1.3 a word and 11 more, with a limit and what it does past it."""

    def __init__(self, limit, past, *, says_usage=True, message="too long"):
        self.limit, self.past = limit, past
        self.says_usage, self.message = says_usage, message
        self.sent = 0

    def tokens(self, planned):
        return round(1.3 * words(planned.prompt_text)) + 11

    def record(self, planned, wave):
        self.sent += 1
        tokens = self.tokens(planned)
        usage = tokens if self.says_usage else None
        text = f" {planned.expected}. The rest"
        outcome, message = Outcome.ANSWERED, None
        if tokens > self.limit:
            outcome, message, text, usage = self.over(planned, usage)
        reply = Reply(
            request_id=planned.request_id, outcome=outcome, error_message=message,
            output_text=text, prompt_tokens=usage,
        )  # fmt: skip
        return record_of(planned, reply, wave=wave.index)

    def over(self, planned, usage):
        if self.past == "refused":
            return Outcome.REFUSED, self.message, None, None
        if self.past == "cut":
            return Outcome.ANSWERED, None, "something else", self.limit if usage else None
        return Outcome.ANSWERED, None, "something else entirely", usage


def searched(server, ctx, probe):
    records = []
    while (wave := probe.next_wave(ctx, records)) is not None:
        batch = [server.record(planned, wave) for planned in wave.requests]
        random.Random(len(records)).shuffle(batch)
        records += batch
    return records, edges_of(ctx, records, probe)


@pytest.mark.parametrize(
    ("past", "value"),
    [("refused", Value.REFUSED), ("cut", Value.TRUNCATED), ("wrong", Value.WRONG)],
)
def test_lengths_are_the_servers_own_by_its_usage(past, value):
    server = Served(9000, past)
    probe = Edge(is_prelude=True)
    records, found = searched(server, context(), probe)
    assert found.past is value
    assert found.requests == server.sent <= 49
    assert 9000 - 32 <= found.right_up_to <= 9000 < found.not_right_from <= 9000 + 32
    assert found.right_up_to in {record.prompt_tokens for record in records}


def test_a_prelude_changes_the_lengths_of_what_follows():
    ctx = context()
    assert [probe.name for probe in prelude_for(ctx)] == ["edge"]
    records, _ = searched(Served(5000, "wrong"), ctx, Edge(is_prelude=True))
    after = probed(ctx, records)
    geometry = geometry_of(after.facts, answer_tokens=48)
    assert geometry.is_known
    assert 5000 - 32 <= geometry.limit <= 5000 < geometry.over <= 5000 + 48
    assert after.facts.probed_past == "wrong"
    assert any("answered wrong" in line for line in edge_told(ctx, records))
    assert probed(ctx, []) is ctx
    assert edge_told(ctx, []) == []


def test_a_server_that_tells_its_limits_is_not_searched():
    facts = ServerFacts(
        context_tokens=2048,
        roles=(RoleFacts(role="unified", pool_tokens=4096, page_size=16, max_input_tokens=2000),),
    )
    assert prelude_for(context(facts)) == ()
    task = Edge().task(context(facts))
    assert (task.known_limit, task.known_over, task.requests_max) == (2000, 2001, 3)
    assert prelude_for(context(scenarios=("edge",), target="http://127.0.0.1:1")) == ()


def test_the_first_look_that_fails_makes_the_rest_ask_by_chat():
    ctx = context()
    probe = Edge()
    first = probe.next_wave(ctx, [])
    assert not first.requests[0].is_chat
    reply = Reply(request_id=first.requests[0].request_id, outcome=Outcome.ERROR, status=404)
    records = [record_of(first.requests[0], reply, wave=0)]
    second = probe.next_wave(ctx, records)
    assert second.requests[0].is_chat
    assert second.requests[0].messages[0].content.count("Complete this sentence") == 1


def test_a_pair_that_was_cut_by_a_crash_goes_on_with_its_second_prompt():
    server, probe, ctx = Served(10**9, "refused"), Edge(is_prelude=True), context()
    records = []
    while len((wave := probe.next_wave(ctx, records)).requests) == 1:
        records += [server.record(planned, wave) for planned in wave.requests]
    one, two = wave.requests
    records.append(server.record(two, wave))
    again = probe.next_wave(ctx, records)
    assert [planned.request_id for planned in again.requests] == [one.request_id]
    assert again.index == wave.index


def test_a_limit_on_the_rate_is_no_edge():
    ctx, probe = context(), Edge()
    wave = probe.next_wave(ctx, [])
    reply = Reply(request_id=wave.requests[0].request_id, outcome=Outcome.RATE_LIMITED, status=429)
    records = [record_of(wave.requests[0], reply, wave=0)]
    assert probe.next_wave(ctx, records) is None
    assert "rate" in told(edges_of(ctx, records, probe))[0]


def record(**changes):
    return RequestRecord(
        **{
            "request_id": "r", "tenant": "a", "expected": "K7QX", "prompt_tokens_sent": 1000,
            "output_text": "k7qx.", "outcome": Outcome.ANSWERED, "prompt_tokens": 1000,
        } | changes
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({}, Value.RIGHT),
        ({"prompt_tokens": None}, Value.RIGHT),
        ({"output_text": "no"}, Value.WRONG),
        ({"prompt_tokens": 700}, Value.TRUNCATED),
        ({"prompt_tokens": 1}, Value.WRONG),
        ({"outcome": Outcome.REFUSED}, Value.REFUSED),
        ({"outcome": Outcome.TIMEOUT}, Value.SILENT),
        ({"outcome": Outcome.UNKNOWN}, Value.SILENT),
    ],
)
def test_the_value_of_one_answer(changes, value):
    assert value_of(record(**changes), Ruler()) is value


@pytest.mark.parametrize(
    ("message", "limit"),
    [
        ("This model's maximum context length is 8192 tokens. However, your prompt contains at"
         " least 8193 input tokens", 8192),
        ("The input (9001 tokens) is longer than the model's context length (8192 tokens).", 8192),
        ("Input length (700000 tokens) exceeds the maximum allowed length (681274 tokens)", 681274),
        ("request (10501 tokens) exceeds the available context size (8,192 tokens)", 8192),
        ("HTTP 400: too long", 400),  # tried once and outvoted
        ("too long", None),
    ],
)  # fmt: skip
def test_a_refusal_that_names_its_limit_is_taken_at_its_word(message, limit):
    sent = record(outcome=Outcome.REFUSED, error_message=message, prompt_tokens_sent=700_000)
    assert named_limit(sent) == limit


def test_the_ruler_is_fitted_to_right_answers_alone():
    pairs = [record(prompt_tokens_sent=own, prompt_tokens=own + 26) for own in (200, 900)]
    assert ruler_of(pairs) == Ruler(offset=26.0, is_exact=True)
    wrong = record(output_text="no", prompt_tokens_sent=5000, prompt_tokens=1)
    assert ruler_of([*pairs, wrong]) == ruler_of(pairs)
    ruler = ruler_of([record(prompt_tokens_sent=own, prompt_tokens=2 * own + 10)
                      for own in (100, 1000)])  # fmt: skip
    assert ruler.server_tokens(500) == 1010
    assert ruler.own_tokens(1010) == 500


def test_what_was_found_is_kept_apart_from_what_was_told():
    facts = ServerFacts(kind="vllm", context_tokens=8192)
    _, found = searched(Served(4000, "refused"), context(facts), Edge())
    after = with_edges(facts, found)
    assert replace(after, probed_right_tokens=None, probed_over_tokens=None, probed_past=None,
                   probed_sum_tokens=None) == facts  # fmt: skip
    assert after.probed_past == "refused"

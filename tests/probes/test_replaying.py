"""Replays: what is worth one and affordable gets one after its wave; the rest says why not."""

from dataclasses import replace

import pytest

from kvaudit.records import Message, Outcome, Role
from kvaudit.serverfacts import ServerFacts
from kvaudit.target import PlannedRequest, Reply, Wave
from probes.replaying import REPLAY_OUTPUT_MIN, run_and_replay

TOKENS = 20


class Notes:
    """A recorder that keeps replays, and the order of everything."""

    def __init__(self):
        self.order, self.replays = [], {}

    def begin(self, planned, wave):
        self.order.append(("begin", planned.request_id))

    def end(self, reply):
        self.order.append(("end", reply.request_id))

    def twin(self, planned):
        pass

    def replay(self, replay):
        self.order.append(("replay", replay.request_id))
        self.replays[replay.request_id] = replay


class Plain:
    """A target without replays; answers as it was told."""

    def __init__(self, **reply):
        self.reply = reply

    def facts(self):
        return ServerFacts()

    def count_tokens(self, text):
        return len(text)

    def send(self, wave, departing):
        for planned in wave.requests:
            departing(planned)
            answer = {
                "outcome": Outcome.ANSWERED, "status": 200,
                "output_token_ids": tuple(range(TOKENS)), "output_logprobs": (-0.5,) * TOKENS,
            }  # fmt: skip
            yield Reply(request_id=planned.request_id, **(answer | self.reply))

    def close(self):
        pass


class Scoring(Plain):
    """A target that can replay all but one request."""

    def __init__(self, *, fails=(), **reply):
        super().__init__(**reply)
        self.fails, self.asked = fails, []

    def replay_obstacle(self, planned):
        return "an obstacle" if planned.request_id == "hindered" else None

    def replay_logprobs(self, planned, output_token_ids):
        self.asked.append((planned.request_id, tuple(output_token_ids)))
        return None if planned.request_id in self.fails else [-0.25] * len(output_token_ids)


def planned(name, role=Role.TRIGGER, *, sent=100):
    return PlannedRequest(
        request_id=name, tenant="a", messages=(Message(role="user", content="text"),),
        scenario="test", stratum="s", role=role, prompt_tokens_sent=sent,
    )  # fmt: skip


def replayed(target, *requests, **options):
    notes = Notes()
    wave = Wave(index=0, scenario="test", requests=requests)
    records = run_and_replay(target, wave, notes, **options)
    return {record.request_id: record for record in records}, notes


@pytest.mark.parametrize("role", [Role.CALIBRATION, Role.CONTROL, Role.TRIGGER])
def test_an_answer_is_scored_under_its_own_prompt_after_the_wave_and_recorded(role):
    target = Scoring()
    records, notes = replayed(target, planned("r", role))
    assert target.asked == [("r", tuple(range(TOKENS)))]
    assert records["r"].replay_logprobs == (-0.25,) * TOKENS
    assert records["r"].replay_reason is None
    assert notes.replays["r"].logprobs == (-0.25,) * TOKENS
    assert notes.order == [("begin", "r"), ("end", "r"), ("replay", "r")]


def test_fills_and_what_was_not_answered_are_not_replayed():
    target = Scoring()
    records, notes = replayed(target, planned("fill", Role.FILL))
    assert (target.asked, notes.replays, records["fill"].replay_reason) == ([], {}, None)
    target = Scoring(outcome=Outcome.REFUSED, status=400)
    assert replayed(target, planned("r"))[1].replays == {}


@pytest.mark.parametrize(
    ("target", "name", "reason"),
    [
        (Plain(), "r", "the target can't replay"),
        (Scoring(), "hindered", "an obstacle"),
        (Scoring(fails=("r",)), "r", "did not score"),
        (Scoring(output_token_ids=None), "r", "no token ids"),
        (Scoring(output_logprobs=None), "r", "no log-probabilities"),
        (Scoring(output_logprobs=(-1.0,)), "r", "differ in number"),
        (
            Scoring(
                output_token_ids=tuple(range(REPLAY_OUTPUT_MIN - 1)),
                output_logprobs=(-1.0,) * (REPLAY_OUTPUT_MIN - 1),
            ),
            "r",
            "fewer than 16 tokens",
        ),
    ],
)
def test_what_can_t_be_replayed_says_why_in_its_record(target, name, reason):
    records, notes = replayed(target, planned(name))
    assert records[name].replay_logprobs is None
    assert reason in records[name].replay_reason
    assert notes.replays[name].reason == records[name].replay_reason


def test_the_budget_counts_what_earlier_waves_replayed():
    target = Scoring()
    records, _ = replayed(target, planned("r1"), planned("r2"), tokens_max=2 * (100 + TOKENS))
    assert [record.replay_reason for record in records.values()] == [None, None]
    spent = tuple(records.values())
    later, _ = replayed(target, planned("r3"), tokens_max=2 * (100 + TOKENS), earlier=spent)
    assert "budget" in later["r3"].replay_reason
    unspent = tuple(replace(record, replay_logprobs=None) for record in spent)
    again, _ = replayed(target, planned("r4"), tokens_max=2 * (100 + TOKENS), earlier=unspent)
    assert again["r4"].replay_logprobs is not None

"""KVA408: a gap above the target's own threshold fires; the noise of a number format does not."""

from dataclasses import replace

import pytest

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.replay import find_replay_gaps, gap_of
from kvaudit.records import Outcome, RequestRecord, Role
from kvaudit.serverfacts import ServerFacts

FP32, BF16 = ServerFacts(dtype="float32"), ServerFacts(dtype="bfloat16")
TOKENS = 24
FILL_WAVE = 3


def answered(name, role, *, noise=0.0, worst=None, wave=9, tokens=TOKENS, **more):
    """One answer whose replay is off by `noise` in every token, by `worst` in the last."""
    made = [-0.1 * (at % 7) for at in range(tokens)]
    again = [value - noise for value in made]
    if worst is not None:
        again[-1] = made[-1] - worst
    return RequestRecord(
        request_id=name, tenant="a", role=role, wave=wave, outcome=Outcome.ANSWERED,
        output_text="text", output_token_ids=tuple(range(tokens)), output_logprobs=tuple(made),
        replay_logprobs=tuple(again), **more,
    )  # fmt: skip


def controls(alone=10, company=22, noise=1e-6, token=1e-5):
    roles = [Role.CALIBRATION] * alone + [Role.CONTROL] * company
    return [
        answered(f"c{number}", role, noise=noise, worst=token, wave=1)
        for number, role in enumerate(roles)
    ]


def find(*records, facts=FP32, null=None):
    fill = answered("fill", Role.FILL, wave=FILL_WAVE)
    fill = replace(fill, replay_logprobs=None)
    return find_replay_gaps(
        Corpus(records=(*(controls() if null is None else null), fill, *records), facts=facts)
    )


def test_an_answer_with_other_log_probabilities_under_its_own_prompt_fires():
    found = find(answered("r", Role.TRIGGER, noise=0.3))
    (evidence,) = found.evidence
    assert evidence.sink_request_id == "r"
    assert evidence.details["gap_mean"] == pytest.approx(0.3)
    assert (found.null_alarms, found.null_trials) == (0, 32)


def test_one_token_that_is_far_off_fires_though_the_mean_is_small():
    found = find(answered("r", Role.TRIGGER, worst=0.9), facts=BF16)
    (evidence,) = found.evidence
    assert evidence.details["gap_mean"] < 0.05
    assert evidence.details["gap_token"] == pytest.approx(0.9)


def test_the_noise_of_float32_is_silent():
    assert find(answered("r", Role.TRIGGER, noise=5e-6, worst=8e-4)).evidence == ()


def test_the_noise_of_bfloat16_is_silent_in_bfloat16_and_fires_in_float32():
    noisy = answered("r", Role.TRIGGER, noise=0.03, worst=0.36)
    assert find(noisy, facts=BF16).evidence == ()
    assert len(find(noisy, facts=FP32).evidence) == 1


def test_a_server_that_names_no_number_format_gets_the_higher_floor():
    noisy = answered("r", Role.TRIGGER, noise=0.03, worst=0.36)
    assert find(noisy, facts=ServerFacts()).evidence == ()


def test_the_threshold_is_twice_the_largest_gap_of_the_target_s_own_controls():
    null = controls(noise=0.1, token=0.6)
    edge = find(answered("r", Role.TRIGGER, noise=0.1, worst=1.19), null=null)
    over = find(answered("r", Role.TRIGGER, noise=0.1, worst=1.21), null=null)
    assert (len(edge.evidence), len(over.evidence)) == (0, 1)


def test_a_control_that_stands_out_among_the_others_is_counted_as_a_false_alarm():
    null = [*controls(), answered("odd", Role.CONTROL, noise=0.5, wave=1)]
    assert find(null=null).null_alarms == 1


@pytest.mark.parametrize(("alone", "company"), [(10, 19), (30, 0), (0, 30)])
def test_thirty_controls_alone_and_in_company_are_needed(alone, company):
    found = find(answered("r", Role.TRIGGER, noise=3.0), null=controls(alone, company))
    assert not found.available
    assert found.evidence == ()


def test_controls_from_after_the_first_fill_do_not_make_the_threshold():
    late = [replace(record, wave=9) for record in controls()]
    assert not find(null=late).available


def test_without_replays_the_reason_is_told():
    null = [
        replace(record, replay_logprobs=None, replay_reason="the target can't replay")
        for record in controls()
    ]
    found = find(null=null)
    assert (found.available, found.reason) == (False, "the target can't replay")


def test_a_trigger_that_could_not_be_replayed_is_told_and_not_judged():
    skipped = replace(
        answered("r", Role.TRIGGER), replay_logprobs=None, replay_reason="over the limit"
    )
    found = find(skipped)
    assert found.examined == 0
    assert "1 triggers not replayed: over the limit" in found.reason


def test_short_answers_and_lists_of_unequal_length_say_nothing():
    assert gap_of(answered("r", Role.TRIGGER, noise=1.0, tokens=15)) is None
    assert gap_of(answered("r", Role.TRIGGER, noise=1.0, tokens=16)) is not None
    record = answered("r", Role.TRIGGER)
    assert gap_of(replace(record, replay_logprobs=record.replay_logprobs[1:])) is None
    assert gap_of(replace(record, replay_logprobs=(float("nan"),) * TOKENS)) is None

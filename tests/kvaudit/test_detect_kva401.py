"""KVA401: what must fire, and the look-alikes that must not; and what truncation explains."""

from dataclasses import replace

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.recall import find_lost_nonces
from kvaudit.detect.truncation import find_truncation
from kvaudit.records import Message, Outcome, RequestRecord, Role

MINT = CanaryMint("secret")
FILLER = "The jolly palace returns 9726 wheels near the iron harbor. " * 4


def ask(name, *, answer=None, role=Role.TRIGGER, sent=1400, reported=None, tenant="a"):
    asked, other = MINT.mint(f"{name}/1", tenant), MINT.mint(f"{name}/2", tenant)
    prompt = (
        f"The code of the hall is {asked.code_text}. {FILLER} The code of the barn is"
        f" {other.code_text}.\nThe code of the hall is"
    )
    return RequestRecord(
        request_id=name, tenant=tenant, role=role, outcome=Outcome.ANSWERED,
        messages=(Message(role="user", content=prompt),), canaries=(asked, other),
        expected=asked.code_text, output_text=asked.code_text if answer is None else answer,
        prompt_tokens_sent=sent, prompt_tokens=sent if reported is None else reported,
        endpoint="/v1/completions",
    )  # fmt: skip


def calibration(right=10, total=10):
    return [
        ask(f"c{n}", role=Role.CALIBRATION, sent=200, answer=None if n < right else "lost")
        for n in range(total)
    ]


def test_an_answer_without_the_own_nonce_fires():
    found = find_lost_nonces(Corpus(records=(*calibration(), ask("r", answer="no idea"))))
    assert [item.sink_request_id for item in found.evidence] == ["r"]
    assert found.examined == 1


@pytest.mark.parametrize("change", [str, str.lower, lambda code: code.replace("-", " ")])
def test_a_right_answer_in_any_case_and_spacing_is_silent(change):
    record = ask("r")
    record = replace(record, output_text=f"It is {change(record.expected)}.")
    assert find_lost_nonces(Corpus(records=(*calibration(), record))).evidence == ()


def test_a_target_that_can_t_answer_alone_has_no_such_oracle():
    found = find_lost_nonces(Corpus(records=(*calibration(right=7), ask("r", answer="no idea"))))
    assert not found.available
    assert found.evidence == ()
    assert (found.null_alarms, found.null_trials) == (3, 10)


def test_the_better_of_two_forms_calibrates():
    instructed = [
        replace(record, request_id=f"i-{record.request_id}", endpoint="/v1/chat/completions")
        for record in calibration()
    ]
    records = (*calibration(right=0), *instructed, ask("r", answer="no idea"))
    found = find_lost_nonces(Corpus(records=records))
    assert found.available
    assert (found.null_alarms, found.null_trials) == (0, 10)


def test_without_calibration_the_oracle_is_not_available():
    assert not find_lost_nonces(Corpus(records=(ask("r", answer="no idea"),))).available


def test_a_refused_prompt_has_lost_nothing():
    refused = replace(ask("r"), outcome=Outcome.REFUSED, output_text=None)
    assert find_lost_nonces(Corpus(records=(*calibration(), refused))).evidence == ()


def test_usage_that_shows_a_cut_explains():
    cut = ask("r", answer="no idea", reported=1000)
    assert list(find_truncation(Corpus(records=(*calibration(), cut)))) == ["r"]


def test_a_placeholder_length_is_no_cut():
    placeholder = ask("r", answer="no idea", reported=1)
    assert find_truncation(Corpus(records=(*calibration(), placeholder))) == {}


def test_an_answer_that_is_right_for_a_part_of_the_own_prompt_explains():
    record = ask("r")
    tail = replace(record, output_text=f" {record.canaries[1].code_text}.")
    assert list(find_truncation(Corpus(records=(*calibration(), tail)))) == ["r"]


def test_an_answer_that_continues_the_own_prompt_explains():
    head = ask("r", answer=" 9726 wheels near the iron harbor. The jolly palace returns")
    assert list(find_truncation(Corpus(records=(*calibration(), head)))) == ["r"]


def test_foreign_or_garbled_text_is_not_explained():
    garbled = ask("r", answer="- - - - - - - - - - - - - - - -")
    foreign = ask("s", answer="The steady hospital guards 6143 chairs inside the golden school")
    assert find_truncation(Corpus(records=(*calibration(), garbled, foreign))) == {}


def test_a_prompt_no_longer_than_one_answered_right_is_not_cut():
    record = ask("r", sent=1000)
    tail = replace(record, output_text=f" {record.canaries[1].code_text}.")
    longer = ask("s", sent=1200, role=Role.CONTROL)
    assert find_truncation(Corpus(records=(*calibration(), tail, longer))) == {}


def test_codes_near_the_end_known_and_all_others_lost_is_a_cut():
    lost = [ask(f"r{number}", answer="no idea") for number in range(3)]
    near = ask("near")
    other = near.canaries[1].code_text  # the code of the barn stands near the end
    near = replace(near, expected=other, output_text=f" {other}.")
    explained = find_truncation(Corpus(records=(*calibration(), *lost, near)))
    assert set(explained) == {"r0", "r1", "r2"}


def test_one_code_from_the_head_known_and_one_near_the_end_lost_is_no_cut():
    near = ask("near")
    near = replace(near, expected=near.canaries[1].code_text, output_text="no idea")
    records = (*calibration(), ask("r0", answer="no idea"), ask("r1"), near)
    assert find_truncation(Corpus(records=records)) == {}


def test_an_answer_cut_inside_the_nonce_is_neither_right_nor_lost():
    record = ask("r")
    cut = replace(record, output_text=f" {record.expected[:9]}", finish_reason="length")
    found = find_lost_nonces(Corpus(records=(*calibration(), cut)))
    assert (found.evidence, found.examined) == ((), 0)


def test_an_answer_cut_after_other_text_is_lost():
    cut = replace(ask("r"), output_text=" who knows what", finish_reason="length")
    assert find_lost_nonces(Corpus(records=(*calibration(), cut))).evidence

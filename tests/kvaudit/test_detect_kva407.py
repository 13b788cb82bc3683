"""KVA407: wrong answers that all begin alike fire; right ones and a few alike do not."""

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.first_token import find_same_first_tokens
from kvaudit.records import Outcome, RequestRecord, Role

CODES = ("K7QX-2MNP", "7YXE-ENWP", "QTN9-Z9ZW", "E6XD-KB5F", "5M7U-XTFW", "J5RF-YNX8", "3YQZ-AE5V")


def asked(name, code, answer, *, role=Role.TRIGGER, wave=9, token=None):
    return RequestRecord(
        request_id=name, tenant="a", role=role, wave=wave, outcome=Outcome.ANSWERED,
        expected=code, output_text=answer,
        output_token_ids=None if token is None else (token, 1, 2),
    )  # fmt: skip


def null(right=10):
    return [
        asked(
            f"c{at}", CODES[at % 7], f" {CODES[at % 7]}." if at < right else " I forgot",
            role=Role.CALIBRATION, wave=1, token=200 + at % 7,
        )
        for at in range(10)
    ]  # fmt: skip


def find(*records, calibration=None):
    fill = asked("fill", None, "text", role=Role.FILL, wave=3)
    return find_same_first_tokens(
        Corpus(records=(*(null() if calibration is None else calibration), fill, *records))
    )


def begun_alike(count, token=300, answer="The broken chapel is"):
    return [asked(f"r{at}", CODES[at], answer, token=token) for at in range(count)]


def test_unrelated_prompts_that_all_begin_with_one_wrong_token_fire():
    found = find(*begun_alike(5))
    assert {item.sink_request_id for item in found.evidence} == {f"r{at}" for at in range(5)}
    assert found.evidence[0].chance < 1e-3
    assert (found.null_alarms, found.null_trials) == (0, 10)


def test_without_token_ids_the_first_word_tells():
    assert len(find(*begun_alike(5, token=None)).evidence) == 5


def test_two_alike_are_an_accident():
    assert find(*begun_alike(2)).evidence == ()


def test_a_token_that_often_begins_right_answers_needs_more_of_them():
    often = [
        asked(f"c{at}", CODES[at % 7], f" {CODES[at % 7]}.", role=Role.CALIBRATION, wave=1, token=9)
        for at in range(10)
    ]
    assert find(*begun_alike(7, token=9), calibration=often).evidence == ()


def test_right_answers_that_share_a_first_token_are_silent():
    right = [asked(f"r{at}", CODES[at], f" {CODES[at]}.", token=300) for at in range(7)]
    assert find(*right).evidence == ()


def test_wrong_answers_that_begin_each_in_its_own_way_are_silent():
    wrong = [asked(f"r{at}", CODES[at], f"word{at} and", token=400 + at) for at in range(7)]
    assert find(*wrong).evidence == ()


def test_a_target_that_begins_with_other_words_when_alone_has_no_such_oracle():
    found = find(*begun_alike(5), calibration=null(right=7))
    assert (found.available, found.evidence) == (False, ())
    assert not find_same_first_tokens(Corpus(records=())).available

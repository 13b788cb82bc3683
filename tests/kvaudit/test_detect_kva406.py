"""KVA406: a known answer lost once the prompt is sent again fires; other wording never does."""

from dataclasses import replace

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.detect.company import ALONE, find_lost_in_company
from kvaudit.detect.corpus import Corpus
from kvaudit.records import Message, Outcome, RequestRecord, Role

STRATA = ("again", "back-again", "in-company")
MINT = CanaryMint("secret")


def request(name, tenant, role, stratum, *, answer=None):
    """One answered request for a code of its own, right unless told otherwise."""
    code = MINT.mint(name, tenant).code_text
    prompt = f"The code of the hall is {code}. It rains.\nThe code of the hall is"
    return RequestRecord(
        request_id=name, tenant=tenant, role=role, stratum=stratum, outcome=Outcome.ANSWERED,
        messages=(Message(role="user", content=prompt),), expected=code,
        output_text=f" {code}." if answer is None else answer, endpoint="/v1/completions",
    )  # fmt: skip


def calibration(lost=0):
    return [
        request(f"c{n}", "t1", Role.CALIBRATION, "", answer="no" if n < lost else None)
        for n in range(10)
    ]


def pair(number, stratum="in-company", *, first=None, again=None):
    """One prompt alone and once more; None = answered right, else what is answered instead."""
    alone = request(f"p{number}-{ALONE}", f"t{number}", Role.CONTROL, ALONE)
    text = alone.output_text if again is None else again
    more = replace(
        alone, request_id=f"p{number}-{stratum}", stratum=stratum, role=Role.TRIGGER,
        output_text=text,
    )  # fmt: skip
    return [alone if first is None else replace(alone, output_text=first), more]


def find(*records, lost=0):
    return find_lost_in_company(Corpus(records=(*calibration(lost), *records)))


@pytest.mark.parametrize("stratum", STRATA)
def test_a_value_known_alone_and_lost_once_more_fires(stratum):
    found = find(*pair(1, stratum, again="who knows"), *pair(2, stratum))
    (evidence,) = found.evidence
    assert evidence.sink_request_id == f"p1-{stratum}"
    assert evidence.details == {"stratum": stratum, "right_in": "p1-alone"}
    assert (found.examined, found.null_alarms, found.null_trials) == (2, 0, 12)


def test_other_wording_round_the_same_value_is_silent():
    alone, more = pair(1)
    reworded = replace(more, output_text=f"Well, it must be {(more.expected or '').lower()}!")
    assert find(alone, reworded).evidence == ()


def test_what_was_lost_alone_too_is_silent_and_is_the_null_s_alarm():
    found = find(*pair(1, first="who knows", again="who knows"), *pair(2))
    assert (found.evidence, found.examined, found.null_alarms) == ((), 1, 1)


def test_an_answer_cut_inside_its_value_is_neither_right_nor_lost():
    alone, more = pair(1)
    cut = replace(more, output_text=f" {(more.expected or '')[:9]}", finish_reason="length")
    found = find(alone, cut, *pair(2))
    assert (found.evidence, found.examined) == ((), 1)


def test_another_tenant_s_or_another_prompt_is_no_pair():
    alone, more = pair(1, again="who knows")
    for other in (replace(more, tenant="t9"), replace(more, messages=()), replace(more, model="x")):
        assert not find(alone, other).available


def test_without_a_prompt_alone_and_again_it_is_not_available():
    alone, more = pair(1)
    for records in ((alone,), (more,), (alone, replace(more, outcome=Outcome.TIMEOUT)), ()):
        found = find(*records)
        assert not found.available
        assert "alone and again" in found.reason


def test_a_target_that_can_t_answer_alone_has_no_such_oracle():
    found = find(*pair(1, again="who knows"), lost=3)
    assert (found.available, found.evidence) == (False, ())
    assert "70% right" in found.reason

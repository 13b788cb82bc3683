"""KVA402-405 on a live run: what makes no sense fires, unless the target is like that."""

import pytest

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.incoherent import FIND_INCOHERENT, RULE_IDS
from kvaudit.records import Message, Outcome, RequestRecord, Role

LOOP = "The seal of the harbor is checked again by hand. " * 12
SALAD = "the дверь 開門 ประตู open हाथ now 문을 " * 3
RUN = "!" * 90
SHOWS = {"KVA402": LOOP, "KVA403": SALAD, "KVA404": RUN, "KVA405": ""}
COHERENT = (
    "The clerk wrote down each number, closed the ledger and went home along the canal, where two"
    " boats were being unloaded; he counted nine crates of lemons, greeted the pilot, and thought"
    " about the letter that had come from his sister in the spring."
)


def said(name, text, *, role=Role.TRIGGER, prompt="What did the clerk do?", finish="stop"):
    return RequestRecord(
        request_id=name, tenant="a", role=role, outcome=Outcome.ANSWERED, expected="clerk",
        messages=(Message(role="user", content=prompt),), output_text=text, finish_reason=finish,
        completion_tokens=40,
    )  # fmt: skip


def find(rule_id, *records, calibration=COHERENT):
    null = [said(f"c{at}", calibration, role=Role.CALIBRATION) for at in range(10)]
    return FIND_INCOHERENT[rule_id](Corpus(records=(*null, *records)))


@pytest.mark.parametrize("rule_id", RULE_IDS)
def test_each_rule_fires_on_its_own_kind_of_nonsense_alone(rule_id):
    record = said("r", SHOWS[rule_id])
    fired = [other for other in RULE_IDS if find(other, record).evidence]
    assert fired == [rule_id]


@pytest.mark.parametrize("rule_id", RULE_IDS)
def test_a_coherent_answer_is_silent(rule_id):
    found = find(rule_id, said("r", COHERENT))
    assert (found.evidence, found.null_alarms, found.null_trials) == ((), 0, 10)


def test_a_repeat_that_was_asked_for_and_an_answer_cut_while_thinking_are_silent():
    asked = said("r", LOOP, prompt="Repeat this sentence 12 times.")
    assert find("KVA402", asked).evidence == ()
    assert find("KVA405", said("r", "", finish="length")).evidence == ()


@pytest.mark.parametrize("rule_id", RULE_IDS)
def test_a_target_that_is_like_that_by_itself_has_no_such_oracle(rule_id):
    found = find(rule_id, said("r", SHOWS[rule_id]), calibration=SHOWS[rule_id])
    assert (found.available, found.evidence) == (False, ())
    assert "10 of 10" in found.reason


def test_without_answers_nothing_can_be_said():
    assert not FIND_INCOHERENT["KVA402"](Corpus(records=())).available

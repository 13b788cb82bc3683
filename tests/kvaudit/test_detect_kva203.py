"""KVA203: a reply that belongs to another prompt fires; stock lines and equal questions do not."""

from dataclasses import replace

import pytest

from kvaudit.canary import CanaryMint
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.replies import (
    BANDS,
    NUM_PERM,
    ROWS,
    find_same_replies,
    jaccard,
    shingles_of,
    values_of,
)
from kvaudit.detect.sensitivity import is_under_bar
from kvaudit.records import Message, Outcome, RequestRecord

MINT = CanaryMint("secret")
TOPICS = {
    "a": "The harbor master wants to know how many barges left the northern dock on Tuesday.",
    "b": "Our bakery needs a recipe for forty loaves of rye bread and a shopping list for it.",
    "c": "Please explain to a child why the moon seems to follow the train at night.",
    "d": "Draft a letter to the landlord about the broken window in the second floor hall.",
}


def ask(name, tenant, answer, *, at=0, prompt=None, expected=True):
    canary = MINT.mint(f"{name}/1", tenant)
    text = prompt or f"{TOPICS[tenant]} The code is {canary.code_text}.\nThe code is"
    return RequestRecord(
        request_id=name, tenant=tenant, messages=(Message(role="user", content=text),),
        canaries=(canary,), outcome=Outcome.ANSWERED, output_text=answer, sent_unix_ns=at,
        ended_unix_ns=at + 10, expected=canary.code_text if expected else None,
    )  # fmt: skip


def reply(name="r1", tenant="a"):
    code = MINT.mint(f"{name}/1", tenant).code_text
    return f"The code is {code}. Nine barges left the northern dock, three of them with timber."


STOCK = "I'm sorry, but I can't help with that request. Please contact the help desk."


def find(*records, **more):
    return find_same_replies(Corpus(records=records, **more))


def test_a_reply_with_another_s_value_given_to_a_different_prompt_fires_once():
    found = find(ask("r1", "a", reply()), ask("r2", "b", reply(), at=5))
    (evidence,) = found.evidence
    assert (evidence.sink_request_id, evidence.source.request_id) == ("r2", "r1")
    assert is_under_bar(evidence)


def test_a_reply_that_is_nearly_the_same_fires_and_a_similar_one_does_not():
    near = reply().replace("Nine", "nine")
    assert len(find(ask("r1", "a", reply()), ask("r2", "b", near + "!", at=5)).evidence) == 1
    other = reply().replace("barges left the northern dock, three", "ships are in the bay, two")
    assert find(ask("r1", "a", reply()), ask("r2", "b", other, at=5)).evidence == ()


def test_a_stock_line_of_two_tenants_convicts_nobody():
    found = find(ask("r1", "a", STOCK, expected=False), ask("r2", "b", STOCK, at=5, expected=False))
    assert found.evidence == ()


def test_a_reply_that_only_misses_what_was_asked_is_a_candidate_without_a_chance():
    right = replace(ask("r1", "a", reply()), expected="northern dock")
    plain = "Nine barges left the northern dock on Tuesday, three of them with timber on board."
    first = replace(right, output_text=plain)
    (evidence,) = find(first, ask("r2", "b", plain, at=5)).evidence
    assert evidence.chance is None
    assert evidence.details["misses_what_was_asked"]


def test_a_template_that_differs_in_values_only_is_everybody_s():
    answers = [ask("r1", "a", reply()), ask("r2", "b", reply(), at=5)]
    third = reply("r3", "c")
    assert find(*answers, ask("r3", "c", third, at=9)).evidence == ()


def test_the_same_question_may_get_the_same_reply():
    prompt = ask("r1", "a", "").prompt_text
    same = ask("r2", "b", reply(), at=5, prompt=prompt)
    assert find(ask("r1", "a", reply()), same).evidence == ()


def test_one_organisation_and_short_replies_are_silent():
    pair = [ask("r1", "a", reply()), ask("r2", "b", reply(), at=5)]
    assert find(*[replace(record, organisation="org") for record in pair]).evidence == ()
    code = MINT.mint("r1/1", "a").code_text
    assert not find(ask("r1", "a", code), ask("r2", "b", code, at=5)).available


def test_a_request_sent_later_can_t_be_the_source():
    found = find(ask("r1", "a", reply(), at=90), ask("r2", "b", reply(), at=5))
    assert found.evidence == ()


def test_bands_and_rows_propose_what_they_promise():
    chance = lambda similarity: 1 - (1 - similarity**ROWS) ** BANDS  # noqa: E731
    assert BANDS * ROWS == NUM_PERM
    assert chance(0.8) == pytest.approx(0.95, abs=0.005)
    assert chance(0.9) > 0.999
    assert chance(0.3) < 0.002


def test_jaccard_and_values_are_exact():
    assert jaccard(frozenset("ab"), frozenset("bc")) == pytest.approx(1 / 3)
    assert jaccard(frozenset(), frozenset()) == 0
    assert shingles_of("A  bcde") == {"a bcd", " bcde"}
    assert values_of("order 20240817 of AB-12-CD-34-EF, 1234567 barges, extraordinary") == {
        "20240817", "ab12cd34ef",
    }  # fmt: skip

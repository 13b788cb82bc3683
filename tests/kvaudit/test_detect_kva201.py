"""KVA201: what must fire, and the look-alikes that must not."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.runs import GRAM, char_bits, find_runs, fold
from kvaudit.detect.sensitivity import CHANCE_BAR
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.target import PlannedRequest

SECRET = "The jolly palace returns 9726 wheels near the iron harbor and pays 4418 in advance"
NOTICE = "This message is confidential and meant for the addressee alone, please delete it at once"


def ask(name, tenant, prompt, *, answer="", at=0, **more):
    return RequestRecord(
        request_id=name,
        tenant=tenant,
        messages=(Message(role="user", content=prompt),),
        outcome=Outcome.ANSWERED,
        output_text=answer,
        sent_unix_ns=at,
        ended_unix_ns=at + 10,
        **more,
    )


def twin(name, prompt):
    return PlannedRequest(
        request_id=name, tenant="z", messages=(Message(role="user", content=prompt),),
        scenario="s", stratum="", role=Role.FILL,
    )  # fmt: skip


def runs(*records, twins=()):
    return find_runs(Corpus(records=records, twins=twins))


def test_a_distinctive_run_of_another_tenants_prompt_fires_and_names_its_source():
    source = ask("r1", "a", f"Read this. {SECRET}. What is it?")
    sink = ask("r2", "b", "What is the weather?", answer=f"Well, {SECRET}!", at=5)
    (evidence,) = runs(source, sink, twins=(twin("t", "something else"),)).evidence
    assert (evidence.source.request_id, evidence.sink_request_id) == ("r1", "r2")
    assert evidence.chance < CHANCE_BAR
    assert SECRET in evidence.excerpt
    span = evidence.source.span
    assert SECRET in source.prompt_text[span.start : span.end]


def test_white_space_and_case_do_not_hide_a_run():
    source = ask("r1", "a", SECRET)
    sink = ask("r2", "b", "hello", answer=SECRET.upper().replace(" ", "\n  "), at=5)
    assert runs(source, sink).evidence[0].chance < CHANCE_BAR


def test_what_the_own_context_holds_is_silent():
    source = ask("r1", "a", SECRET)
    sink = ask("r2", "b", f"Repeat: {SECRET}", answer=SECRET, at=5)
    assert runs(source, sink).evidence == ()


def test_what_an_earlier_prompt_of_the_same_tenant_held_is_silent():
    source = ask("r1", "a", SECRET)
    earlier = ask("r0", "b", f"Mine: {SECRET}")
    sink = ask("r2", "b", "hello", answer=SECRET, at=5)
    assert runs(source, earlier, sink).evidence == ()


def test_boilerplate_that_a_third_owner_sends_too_is_silent():
    source, third = ask("r1", "a", NOTICE), ask("r3", "c", NOTICE)
    sink = ask("r2", "b", "hello", answer=NOTICE, at=5)
    assert runs(source, third, sink).evidence == ()


def test_what_a_never_sent_twin_holds_too_is_silent():
    source = ask("r1", "a", NOTICE)
    sink = ask("r2", "b", "hello", answer=NOTICE, at=5)
    assert runs(source, sink, twins=(twin("t", NOTICE),)).evidence == ()


def test_a_later_request_is_no_source():
    source = ask("r1", "a", SECRET, at=1000)
    sink = ask("r2", "b", "hello", answer=SECRET, at=5)
    assert runs(source, sink).evidence == ()


def test_a_short_common_phrase_is_under_the_bar():
    source = ask("r1", "a", "Thank you very much for your message, it was a pleasure. " * 3)
    sink = ask("r2", "b", "hello", answer="Thank you very much for your help", at=5)
    found = runs(source, sink)
    assert all(item.chance >= CHANCE_BAR for item in found.evidence)


def test_a_score_that_a_twin_reaches_has_no_chance_of_its_own():
    source = ask("r1", "a", SECRET)
    sink = ask("r2", "b", "hello", answer=SECRET, at=5)
    alarm = "The steady hospital guards 6143 chairs inside the golden school since 1999 and 2077"
    other = ask("r4", "b", "hello", answer=alarm * 2, at=5)
    found = runs(source, sink, other, twins=(twin("t", alarm * 2),))
    (evidence,) = found.evidence
    assert found.null_alarms == 1
    assert evidence.chance is None
    assert evidence.details["highest_twin_bits"] > evidence.score


def test_the_first_of_two_requests_with_the_text_is_the_source():
    late = ask("r1", "a", f"{SECRET} again", at=3)
    early = ask("r0", "a", SECRET, at=1)
    sink = ask("r2", "b", "hello", answer=SECRET, at=5)
    (evidence,) = runs(late, early, sink).evidence
    assert evidence.source.request_id == "r0"
    assert evidence.details["other_sources"] == [{"request_id": "r1", "tenant": "a"}]


def test_values_weigh_more_than_words():
    assert sum(char_bits("order 48213377 now")) > sum(char_bits("order seventeen now"))


@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 30), st.integers(GRAM, 60))
def test_every_shared_run_of_a_gram_or_more_is_found_and_stands_in_both(before, after, cut, size):
    source = ask("r1", "a", f"{before} {SECRET}")
    run = SECRET[cut : cut + size]
    sink = ask("r2", "b", "hello", answer=f"{run}{after}", at=5)
    found = runs(source, sink).evidence
    if len(fold(run).text.strip()) >= GRAM and sum(char_bits(fold(run).text)) > 40:
        (evidence,) = found
        assert fold(evidence.excerpt).text in fold(sink.output_text).text
        assert fold(evidence.excerpt).text in fold(source.prompt_text).text
    span = [item.sink_span for item in found]
    assert all(
        sink.output_text[s.start : s.end] == i.excerpt for s, i in zip(span, found, strict=True)
    )


@given(st.text(max_size=80))
def test_folding_keeps_the_place_of_every_character(text):
    folded = fold(text)
    assert len(folded.text) == len(folded.offsets)
    assert list(folded.offsets) == sorted(folded.offsets)
    assert "  " not in folded.text


def test_no_answer_at_all_makes_the_oracle_unavailable():
    silent = replace(ask("r1", "a", SECRET), output_text=None)
    assert not runs(silent).available

"""KVA101: what must fire, and the look-alikes that must not."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.canary import CODE_ALPHABET, PARTIAL_WORDS, CanaryMint
from kvaudit.detect.canaries import find_canaries
from kvaudit.detect.corpus import Corpus, swap_on_paper
from kvaudit.records import Message, Outcome, RequestRecord, Role
from kvaudit.target import PlannedRequest


def ask(mint, name, tenant, *, answer="fine, thank you", at=0, **more):
    canary = mint.mint(f"{name}/1", tenant)
    text = (
        f"The code of the hall is {canary.code_text}. It answers to {canary.phrase}.\nThe code is"
    )
    return RequestRecord(
        request_id=name,
        tenant=tenant,
        messages=(Message(role="user", content=text),),
        canaries=(canary,),
        expected=canary.code_text,
        outcome=Outcome.ANSWERED,
        output_text=answer,
        sent_unix_ns=at,
        ended_unix_ns=at + 10,
        **more,
    )


def leak(text, mint=None, *, source_at=0, sink_at=5):
    """One source and one sink whose answer is `text.format(canary)`."""
    mint = mint or CanaryMint("secret")
    source = ask(mint, "r1", "a", at=source_at)
    canary = source.canaries[0]
    answer = text.format(
        code=canary.code_text,
        bare=canary.code,
        words=canary.phrase,
        six=" ".join(canary.words[3:9]),
        five=" ".join(canary.words[3:8]),
    )
    return source, ask(mint, "r2", "b", answer=answer, at=sink_at)


@pytest.mark.parametrize(
    "text", ["it is {code}.", "{words}", "so {six} and", "x{bare}y", "{code} {words}"]
)
def test_a_foreign_code_or_six_words_in_a_row_fire_and_name_their_source(text):
    found = find_canaries(Corpus(records=leak(text)))
    (evidence,) = found.evidence
    assert evidence.sink_request_id == "r2"
    assert evidence.source.request_id == "r1"
    assert evidence.chance < 1e-12
    span = evidence.sink_span
    assert leak(text)[1].output_text[span.start : span.end] == evidence.excerpt


@pytest.mark.parametrize("text", ["{five}", "nothing here", "K7QX-2MNP-ABCD-EFGH"])
def test_five_words_or_a_string_that_only_looks_like_a_canary_are_silent(text):
    assert find_canaries(Corpus(records=leak(text))).evidence == ()


def test_a_canary_that_was_minted_for_no_request_is_silent():
    stray = CanaryMint("another secret").mint("stray", "z")
    source, sink = leak("nothing")
    sink = replace(sink, output_text=f"{stray.code_text} {stray.phrase}")
    assert find_canaries(Corpus(records=(source, sink))).evidence == ()


def test_the_own_canary_is_no_evidence():
    mint = CanaryMint("secret")
    other, own = ask(mint, "r1", "a"), ask(mint, "r2", "b")
    own = replace(own, output_text=own.canaries[0].code_text)
    assert find_canaries(Corpus(records=(other, own))).evidence == ()


def test_what_the_own_prompt_quotes_is_no_evidence():
    source, sink = leak("it is {code}")
    quoted = replace(
        sink, messages=(*sink.messages, Message(role="user", content=sink.output_text))
    )
    assert find_canaries(Corpus(records=(source, quoted))).evidence == ()


def test_an_attached_item_is_own_context():
    source, sink = leak("it is {code}")
    attached = replace(sink, attachments=(f"retrieved: {source.canaries[0].code_text}",))
    assert find_canaries(Corpus(records=(source, attached))).evidence == ()


def test_two_tenants_of_one_organisation_are_not_foreign_to_each_other():
    records = tuple(replace(record, organisation="acme") for record in leak("{code}"))
    assert find_canaries(Corpus(records=records)).evidence == ()


def test_a_request_sent_after_the_answer_ended_is_no_source():
    assert find_canaries(Corpus(records=leak("{code}", source_at=100, sink_at=5))).evidence == ()


def test_a_concurrent_request_is_a_source():
    assert find_canaries(Corpus(records=leak("{code}", source_at=14, sink_at=5))).evidence


def test_the_first_carrier_is_the_source_and_later_ones_are_listed():
    source, sink = leak("{code}", source_at=0, sink_at=50)
    again = replace(source, request_id="r1b", sent_unix_ns=20)
    (evidence,) = find_canaries(Corpus(records=(again, source, sink))).evidence
    assert evidence.source.request_id == "r1"
    assert evidence.details["other_sources"] == [{"request_id": "r1b", "tenant": "a"}]


def test_a_cut_answer_can_show_a_canary_too():
    source, sink = leak("{code}")
    cut = replace(sink, outcome=Outcome.TIMEOUT)
    assert find_canaries(Corpus(records=(source, cut))).evidence


def test_a_twin_canary_in_an_answer_is_a_false_alarm_and_no_evidence():
    source, sink = leak("nothing")
    twin_canary = CanaryMint("secret").mint("twin/1", "a")
    twin = PlannedRequest(
        request_id="twin", tenant="a", messages=(), scenario="s", stratum="", role=Role.FILL,
        canaries=(twin_canary,),
    )  # fmt: skip
    seen = replace(sink, output_text=twin_canary.code_text)
    found = find_canaries(Corpus(records=(source, seen), twins=(twin,)))
    assert found.evidence == ()
    assert (found.null_alarms, found.null_trials) == (1, 2)


def test_without_canaries_the_oracle_is_not_available():
    record = RequestRecord(request_id="r", tenant="a", output_text="text")
    assert not find_canaries(Corpus(records=(record,))).available


def test_without_twins_false_alarms_are_not_known():
    assert find_canaries(Corpus(records=leak("x"))).null_alarms is None


@given(
    st.lists(st.text("abcdefghij", min_size=2, max_size=6), min_size=24, max_size=30, unique=True),
    st.permutations(CODE_ALPHABET),
    st.sampled_from(["{code}", "{words}", "{six}", "{five}", "no canary"]),
)
def test_another_word_list_and_alphabet_change_nothing(words, alphabet, text):
    mint = CanaryMint("other", words=words, alphabet="".join(alphabet[:20]))
    swapped = find_canaries(Corpus(records=leak(text, mint)))
    builtin = find_canaries(Corpus(records=leak(text)))
    assert len(swapped.evidence) == len(builtin.evidence)
    assert [(item.sink_request_id, item.source.request_id) for item in swapped.evidence] == [
        (item.sink_request_id, item.source.request_id) for item in builtin.evidence
    ]


@given(st.integers(0, 12), st.integers(1, 12))
def test_a_run_of_words_fires_exactly_from_six_on(start, count):
    mint = CanaryMint("secret")
    source, sink = leak("")
    words = source.canaries[0].words[start : start + count]
    sink = replace(sink, output_text=f"well {' '.join(words)} indeed")
    evidence = find_canaries(Corpus(records=(source, sink))).evidence
    assert bool(evidence) == (len(words) >= PARTIAL_WORDS)
    if evidence:
        assert evidence[0].details["words_in_a_row"] == len(words)
        assert evidence[0].excerpt == " ".join(words)
    assert mint.mint("r1/1", "a") == source.canaries[0]


def test_swapped_on_paper_every_calibration_answer_is_flagged_with_its_giver():
    mint = CanaryMint("secret")
    calibration = []
    for number in range(6):
        record = ask(mint, f"c{number}", f"t{number % 3}", role=Role.CALIBRATION, at=number * 100)
        calibration.append(replace(record, output_text=record.canaries[0].code_text))
    swap = swap_on_paper(Corpus(records=tuple(calibration)))
    evidence = find_canaries(swap.corpus).evidence
    assert {item.sink_request_id: item.source.request_id for item in evidence} == swap.giver_of
    assert len(swap.giver_of) == 6

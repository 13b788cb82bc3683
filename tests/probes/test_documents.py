"""Documents: exact to the token, canaries where they belong, right answers in the text."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvaudit.canary import PARTIAL_WORDS
from probes.documents import ATTRIBUTES, SHORT_TOKENS, Depth, DocumentWriter, attributes_of

PIECES = re.compile(r" ?[a-z]{1,4}| ?[A-Z][a-z]{0,3}|[0-9]|\s|.")


def count_tokens(text):
    """A small tokeniser: BOS, up to four letters, single digits."""
    return 1 + len(PIECES.findall(text))


def writer(label="r", *, tokens=1321, tenant="a", seed=1, attributes=ATTRIBUTES):
    return DocumentWriter(
        root=f"{seed}", label=label, tenant=tenant, tokens=tokens, attributes=attributes,
        count_tokens=count_tokens,
    )  # fmt: skip


@settings(max_examples=25)
@given(st.integers(300, 2500), st.sampled_from(Depth), st.integers(0, 5))
def test_a_document_has_exactly_the_wanted_length(tokens, depth, label):
    document = writer(f"r{label}", tokens=tokens).write(depth=depth)
    assert document.tokens == count_tokens(document.text) == tokens


@pytest.mark.parametrize("depth", Depth)
@pytest.mark.parametrize("tokens", [200, 1321])
def test_the_stem_asks_for_a_code_that_the_text_names_once(depth, tokens):
    document = writer(tokens=tokens).write(depth=depth)
    answers = re.findall(re.escape(document.stem) + r" ([A-Z2-9-]+)", document.text)
    assert answers == [document.expected]
    assert document.text.endswith(f"\n{document.stem}")


@pytest.mark.parametrize("depth", Depth)
def test_every_canary_is_planted_with_code_and_words(depth):
    document = writer().write(depth=depth)
    for canary in document.canaries:
        assert document.text.count(canary.code_text) == 1
        assert canary.phrase in document.text


@pytest.mark.parametrize("depth", Depth)
def test_every_paragraph_begins_with_a_canary(depth):
    document = writer().write(depth=depth)
    for paragraph in document.text.split("\n")[:-1]:
        start = paragraph[:200]
        assert any(
            canary.code_text in start or " ".join(canary.words[:PARTIAL_WORDS]) in start
            for canary in document.canaries
        )


def test_the_block_stands_at_the_depth_that_was_asked_for():
    places = {}
    for depth in Depth:
        document = writer().write(depth=depth)
        places[depth] = document.text.index(document.expected) / len(document.text)
    assert places[Depth.HEAD] < 0.1
    assert 0.3 < places[Depth.MIDDLE] < 0.7
    assert places[Depth.TAIL] > 0.7


def test_the_continuation_is_what_follows_the_stem_in_the_text():
    document = writer().write(depth=Depth.HEAD)
    assert f"{document.stem}{document.continuation}" in document.text
    assert document.continuation.startswith(f" {document.expected}.")


def test_a_short_document_has_one_canary_and_fits():
    document = writer(tokens=SHORT_TOKENS - 1).write(depth=Depth.HEAD)
    assert len(document.canaries) == 1


@pytest.mark.parametrize("depth", Depth)
def test_a_short_document_names_its_code_at_its_depth_and_again_before_the_stem(depth):
    document = writer(tokens=249).write(depth=depth)
    assert document.tokens == count_tokens(document.text) == 249
    lines = document.text.split("\n")
    named = [at for at, line in enumerate(lines) if document.expected in line]
    first, last = {Depth.HEAD: 1, Depth.MIDDLE: 4, Depth.TAIL: len(lines) - 3}, len(lines) - 2
    assert len(named) == 2
    assert abs(named[0] - first[depth]) <= 1
    assert named[1] == last


def test_a_short_document_has_no_number_near_its_end_but_the_code():
    for label in range(20):
        document = writer(f"r{label}", tokens=249).write(depth=Depth.HEAD)
        end = document.text[-200:].replace(document.expected, "")
        assert not re.search(r"[0-9]{3}", end)


@pytest.mark.parametrize("cut", [1321, 1322])
def test_a_cut_document_can_go_on_right_behind_the_cut(cut):
    document = writer(tokens=1450).write_cut(cut)
    assert document.tokens == count_tokens(document.text) == 1450
    lead = f" The {document.attribute} of"
    at = document.text.rindex(lead + " the", 0, document.text.index("is asked for")) + len(lead)
    assert count_tokens(document.text[:at]) == cut


def test_too_little_room_behind_a_cut_gives_none():
    assert writer(tokens=1330).write_cut(1321) is None


def test_two_requests_share_no_canary_and_no_entity_sentence():
    one, two = writer("r1").write(depth=Depth.HEAD), writer("r2").write(depth=Depth.HEAD)
    assert not {c.code for c in one.canaries} & {c.code for c in two.canaries}
    shared = set(re.split(r"[.\n]", one.text)) & set(re.split(r"[.\n]", two.text))
    assert shared <= {""}


def test_the_same_seed_writes_the_same_document():
    assert writer().write(depth=Depth.TAIL) == writer().write(depth=Depth.TAIL)
    assert writer().write(depth=Depth.TAIL) != writer(seed=2).write(depth=Depth.TAIL)


def test_an_opening_comes_first():
    document = writer().write(depth=Depth.HEAD, opening="This is notice 4.")
    assert document.text.startswith("This is notice 4. The ")
    assert document.tokens == 1321


@given(st.integers(2, 64))
def test_tenants_share_no_attribute_as_long_as_there_are_enough(tenants):
    nouns = [attributes_of(tenant, tenants) for tenant in range(tenants)]
    assert all(nouns)
    if tenants <= len(ATTRIBUTES):
        flat = [noun for group in nouns for noun in group]
        assert len(flat) == len(set(flat))

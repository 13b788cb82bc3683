"""Excerpts that who knows the text recognises, and who does not cannot read."""

import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.findings import Span
from reports.redact import EXCERPT_CHARS, Redactor, redaction_key

RED = Redactor(key=redaction_key("secret of a run"))
SECRETS = {
    "mail": "anna.schmidt@example.com",
    "key": "sk-proj4Zk9AbCdEfGh12345678",
    "card": "4242 4242 4242 4242",
    "iban": "DE89 3704 0044 0532 0130 00",
    "code": "K7QX-2MNP-ABCD-EFGH",
    "id": "A77382910045",
    "phone": "+49 30 12345678",
    "name": "Anna Schmidt",
    "date": "1987-03-14",
    "ip": "203.0.113.77",
    "link": "https://files.example.com/s/9f8e7d6c?token=abc",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_becomes_a_placeholder_of_its_type(kind):
    shown = RED.excerpt(f"she wrote {SECRETS[kind]} in the ticket")
    assert f"[{kind} " in shown
    assert SECRETS[kind] not in shown


@pytest.mark.parametrize("kind", SECRETS)
def test_equal_secrets_are_equal_inside_a_run_and_unlinkable_across_runs(kind):
    def tag(redactor, text):
        return redactor.excerpt(text).rpartition(":")[2].rstrip("]")

    other_run = Redactor(key=redaction_key("secret of another run"))
    assert tag(RED, f"one {SECRETS[kind]}") == tag(RED, f"and two: {SECRETS[kind]}")
    assert tag(RED, f"one {SECRETS[kind]}") != tag(other_run, f"one {SECRETS[kind]}")


def test_one_code_in_two_spellings_has_one_tag():
    grouped, plain = RED.excerpt("K7QX-2MNP-ABCD-EFGH"), RED.excerpt("k7qx2mnpabcdefgh")
    assert grouped[-7:] == plain[-7:]


def test_different_secrets_have_different_tags():
    tags = {RED.excerpt(f"user{number:08d}@example.com") for number in range(10_000)}
    assert len(tags) >= 9_999


def test_without_a_key_a_placeholder_carries_no_tag():
    assert Redactor().excerpt(SECRETS["mail"]) == "[mail a…m]"


def test_words_keep_their_ends_and_function_words_stay():
    assert RED.excerpt("the harbour of the lantern") == "the h·····r of the l·····n"


def test_a_secret_after_its_label_is_masked_whatever_it_looks_like():
    shown = RED.excerpt("password: hunter2 and api_key=zebra")
    assert "hunter" not in shown
    assert "zebra" not in shown
    assert shown.startswith("password: [key ")


@given(st.text(alphabet=string.ascii_letters, min_size=4, max_size=20))
def test_no_word_of_four_letters_or_more_is_shown_whole(word):
    shown = RED.excerpt(f"xx {word} xx")
    # Function words are shown on purpose: they carry nothing.
    assert word not in shown or RED.excerpt(word.lower()) == word.lower()


def test_words_of_scripts_without_spaces_are_masked():
    shown = RED.excerpt("患者王伟的病历号是")
    assert shown[0] == "患"
    assert "王伟" not in shown


def test_the_shared_span_is_marked_and_its_surroundings_are_short():
    text = "before " * 100 + "harbour lantern meadow" + " after" * 100
    start = text.index("harbour")
    pieces = RED.pieces(text, Span(start=start, end=start + len("harbour lantern meadow")))
    assert [piece.text for piece in pieces if piece.mark == "shared"] == ["h·····r l·····n m····w"]
    assert sum(len(piece.text) for piece in pieces) < 200


def test_a_long_span_is_cut_and_says_by_how_much():
    text = "harbour " * 10_000
    shown = RED.excerpt(text)
    assert len(shown) < 2 * EXCERPT_CHARS
    assert "characters …" in shown


def test_a_token_that_reaches_into_the_span_is_marked_whole():
    text = "write to anna.schmidt@example.com today"
    pieces = RED.pieces(text, Span(start=14, end=20))
    shared = [piece.text for piece in pieces if piece.mark == "shared"]
    assert len(shared) == 1
    assert shared[0].startswith("[mail ")


@given(
    st.text(max_size=300), st.integers(-5, 400), st.integers(-5, 400), st.booleans()
)  # fmt: skip
def test_any_span_of_any_text_can_be_shown(text, start, end, reveal):
    pieces = Redactor(key=b"k" * 16, reveal=reveal).pieces(text, Span(start=start, end=end))
    assert all(isinstance(piece.text, str) for piece in pieces)


@given(st.text(alphabet="ab 1-@.", max_size=200))
def test_revealed_text_is_the_text(text):
    assert Redactor(reveal=True).excerpt(text) == text


@pytest.mark.parametrize(
    "unit", ["a", "a@", "1 ", "-----BEGIN ", "A1-", "eyJ", "Aa ", "http://", "\u0301"]
)
def test_a_million_characters_cost_milliseconds(unit):
    text = unit * (1_000_000 // len(unit))
    start = time.process_time()
    RED.excerpt(text)
    assert time.process_time() - start < 0.2


def test_strings_in_details_are_redacted_unless_their_key_is_known_to_hold_our_own_words():
    details = {"fold": "case", "text": "harbour lantern", "more": [{"tenant": "a", "x": "meadow"}]}
    shown = RED.json_value(details, plain_keys=frozenset({"fold", "tenant"}))
    assert shown == {
        "fold": "case", "text": "h·····r l·····n", "more": [{"tenant": "a", "x": "m····w"}]
    }  # fmt: skip

"""Hostile text made harmless."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import neutral
from reports.neutral import many_lines, one_line

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=60)


@given(ANY_TEXT)
def test_no_invisible_character_survives(text):
    shown = one_line(text)
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert not [char for char in shown if unicodedata.category(char) in hidden]
    shown.encode("utf-8")


@given(ANY_TEXT)
def test_text_that_was_made_harmless_stays_as_it_is(text):
    assert one_line(one_line(text)) == one_line(text)


@given(ANY_TEXT)
def test_only_line_breaks_survive_where_lines_are_kept(text):
    lines = many_lines(text).split("\n")
    assert lines == [one_line(line.replace("⏎", "⏎")) for line in lines]


def test_plain_text_of_any_script_stays_itself():
    for text in (
        "plain ASCII, 42 %",
        "Grüße aus Łódź",
        "患者王伟的病历",
        "नमस्ते दुनिया",
        "שלום عليكم",
    ):
        assert one_line(text) == text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J\x1b]0;owned\x07", "\\u{1B}[2J\\u{1B}]0;owned\\u{07}"),
        ("user\u202egnp.exe", "user\\u{202E}gnp.exe"),
        ("zero\u200bwidth\ufeff", "zero\\u{200B}width\\u{FEFF}"),
        ("nul\x00here", "nul\\u{00}here"),
        ("c1\x9b31m", "c1\\u{9B}31m"),
        ("lone\ud800surrogate", "lone\\u{D800}surrogate"),
        ("tag\U000e0041", "tag\\u{E0041}"),
        ("filler\u3164\u2800", "filler\\u{3164}\\u{2800}"),
        ("two\r\nlines\nand\ttab", "two⏎lines⏎and tab"),
        ("line\u2028separator", "line\\u{2028}separator"),
        ("carriage\rreturn", "carriage\\u{0D}return"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(hostile, shown):
    assert one_line(hostile) == shown


def test_a_tower_of_combining_marks_is_cut_to_three():
    assert one_line("Z" + "\u0301" * 500 + "x") == "Z\u0301\u0301\u0301\\u{+497 marks}x"


def test_the_shortcut_for_plain_text_lets_no_hidden_character_through():
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs", "Mn", "Me"}
    plain = [chr(code) for code in range(0x110000) if neutral._PLAIN.fullmatch(chr(code))]
    assert len(plain) > 20_000
    assert {char for char in plain if unicodedata.category(char) in hidden} == {" "}


def test_credentials_in_an_address_are_never_shown():
    for show in (neutral.sentence, neutral.value):
        shown = show("kvaudit audit https://user:pass%20word@gateway.example/v1 --seed 3")
        assert shown == "kvaudit audit https://…@gateway.example/v1 --seed 3"


def test_what_is_cut_says_how_long_it_was():
    assert neutral.name("x" * 1_000_000).endswith("x… (1,000,000 characters)")
    assert neutral.sentence("y" * 5_000).endswith("y… (5,000 characters)")


@pytest.mark.parametrize(
    "command", ["::error file=a::b", "  ::set-output::x", "##vso[task.x]", "a ##[error]"]
)
def test_no_text_is_a_command_to_the_ci_that_logs_it(command):
    shown = one_line(command)
    assert not shown.lstrip().startswith("::")
    assert "##" not in shown

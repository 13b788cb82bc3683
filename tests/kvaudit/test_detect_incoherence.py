"""KVA402-405: answers that make no sense, and answers that only look so."""

import pytest

from kvaudit.detect.incoherence import find_incoherence, is_empty_answer

PLAIN = "What time does the ferry to Brennick leave on Sundays, and is there a later one?"
PROSE = (
    "The ferry leaves at half past nine on Sundays. A later one runs only between Lententide and"
    " the harvest fair, at a quarter to six; outside of it there is none. Tickets are sold at the"
    " kiosk by the second pier, which opens an hour before departure, and on board if it is shut."
)
MIXED = (
    "die Кошка 한국어 ferry مرحبا nine ελλάδα the зима 고양이 leaves سلام at γάτα river один 바다 "
)
LOOP = "and the harbour board said that "


@pytest.mark.parametrize(("answer", "rule"), [
    ("The board met. " + LOOP * 30, "KVA402"),
    (LOOP * 30 + "then it ended.", "KVA402"),
    ("!" * 200, "KVA404"),
    ("Sure: " + "0" * 300, "KVA404"),
    ("".join(f"{word}\ufffd\ufffd " for word in PROSE.split()), "KVA403"),
    (MIXED * 4, "KVA403"),
])  # fmt: skip
def test_nonsense_is_found(answer: str, rule: str) -> None:
    found = find_incoherence(answer, PLAIN)
    assert found is not None
    assert found.rule_id == rule
    assert 0 < found.score <= 1
    assert 0 <= found.start < found.end <= len(answer)


@pytest.mark.parametrize(("prompt", "answer"), [
    (PLAIN, PROSE),
    ("Repeat the line ten times: " + LOOP, LOOP * 30),
    ("Draw a divider.", "-" * 40),
    ("Fill a test file with zeros, a placeholder.", "0" * 300),
    (PLAIN, "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 30),
    ("Translate 'sea' into six languages.", "sea: Meer, море, 바다, بحر, θάλασσα, 海 " * 4),
    ("Скажи по-русски, когда паром.", "Паром уходит в 9:30. API key: x. " * 3),
    ("日本語で答えて。フェリーは何時ですか。", "日曜のフェリーは九時半です。" * 3),
    (PLAIN, "Nine."),
    (PLAIN, "\n".join(f"{n}. at {n}:30 from pier {n % 3}" for n in range(1, 25))),
    ("Continue: " + LOOP * 4, LOOP * 20),
])  # fmt: skip
def test_what_was_asked_for_is_no_nonsense(prompt: str, answer: str) -> None:
    assert find_incoherence(answer, prompt) is None


def test_an_empty_answer_with_tokens_spent_is_told_from_those_that_have_a_reason() -> None:
    stop = ("stop",)
    assert is_empty_answer("", other_text="", produced=40, finish_reasons=stop)
    assert not is_empty_answer("", other_text="thinking", produced=40, finish_reasons=stop)
    assert not is_empty_answer("", other_text="", produced=40, finish_reasons=("length",))
    assert not is_empty_answer("", other_text="", produced=40, finish_reasons=("tool_calls",))
    assert not is_empty_answer("", other_text="", produced=0, finish_reasons=stop)
    assert not is_empty_answer("", other_text="", produced=1, finish_reasons=stop)
    assert not is_empty_answer("Nine.", other_text="", produced=2, finish_reasons=stop)

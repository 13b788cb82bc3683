"""KVA402-405: answers that make no sense, weighed against what the prompt asked for.

Never convicts. Thresholds hold back what a healthy model also writes: dividers, tables, counting,
asked-for repeats, translations, short answers.
"""

import re
import unicodedata
import zlib
from typing import NamedTuple

_REPEAT_ASKED = re.compile(
    r"repeat|again and again|\btimes\b|lorem|placeholder|dummy|test data|pattern|ascii art|divider"
    r"|separator|lyrics|chorus|song|chant|mantra|count (?:from|to)|list (?:all|every|\d+)|\bloop\b"
    r"|wiederhol|répét|repet|повтор|重复|繰り返",
    re.IGNORECASE,
)
_SCRIPTS_ASKED = re.compile(
    r"translat|transliterat|übersetz|tradui|traduc|перевед|翻译|翻訳|번역|language|script|alphabet"
    r"|unicode|emoji|phonetic|\bipa\b|character set|encoding|multilingual|random|base64|\bhex\b"
    r"|binary|hash|cipher|encrypt|password|token"
    r"|\b(?:thai|greek|georgian|armenian|russian|ukrainian|bulgarian|serbian|cyrillic|arabic|persian"
    r"|farsi|urdu|hebrew|hindi|bengali|tamil|telugu|chinese|mandarin|cantonese|japanese|korean)\b",
    re.IGNORECASE,
)
LOOP_CHARS_MIN = 240
LOOP_SHARE_MIN = 0.6
LOOP_REPEATS_MIN = 6
# A shorter answer must be little else than its loop.
SHORT_LOOP_CHARS_MIN = 100
SHORT_LOOP_SHARE_MIN = 0.8
SHORT_LOOP_REPEATS_MIN = 10
SALAD_CHARS_MIN = 80
RUN_CHARS_MIN = 40
RUN_SHARE_MIN = 0.8
_HEAD_CHARS = 100_000
_UNIT_CHARS_MAX = 400


class Incoherence(NamedTuple):
    """What is wrong with an answer.

    Attributes:
        rule_id: KVA402 to KVA405.
        score: Share of the answer that shows it, from 0 to 1.
        start, end: Where in the answer.
        why: In our own words.
    """

    rule_id: str
    score: float
    start: int
    end: int
    why: str


def find_incoherence(answer: str, prompt: str) -> Incoherence | None:
    """Return the first thing that is wrong with a non-empty answer; None if nothing is."""
    text = answer[:_HEAD_CHARS]
    if len(text) < RUN_CHARS_MIN:
        return None
    asked = prompt[-_HEAD_CHARS:]
    return _one_character(text, asked) or _loop(text, asked) or _salad(text, asked)


def _one_character(text: str, prompt: str) -> Incoherence | None:
    """KVA404: most of the answer is one character, other than a divider that was asked for."""
    stripped = text.strip()
    if len(stripped) < RUN_CHARS_MIN:
        return None
    for char in {stripped[0], stripped[len(stripped) // 2], stripped[-1]}:
        count = stripped.count(char)
        share = count / len(stripped)
        if share > RUN_SHARE_MIN and char * 8 not in prompt and not _REPEAT_ASKED.search(prompt):
            start = text.index(char)
            return Incoherence("KVA404", share, start, len(text), "one character")
    return None


def _loop(text: str, prompt: str) -> Incoherence | None:
    """KVA402: a unit comes again and again, back to back, until the end or most of the answer."""
    is_short = len(text) < LOOP_CHARS_MIN
    if len(text) < SHORT_LOOP_CHARS_MIN or _compresses_little(text, 0.4 if is_short else 0.25):
        return None
    share_min = SHORT_LOOP_SHARE_MIN if is_short else LOOP_SHARE_MIN
    repeats_min = SHORT_LOOP_REPEATS_MIN if is_short else LOOP_REPEATS_MIN
    if _REPEAT_ASKED.search(prompt):
        return None
    found = _longest_loop(text)
    if found is None:
        return None
    start, end, unit = found
    share = (end - start) / len(text)
    repeats = (end - start) // unit
    if share < share_min or repeats < repeats_min or text[start : start + unit] * 2 in prompt:
        return None
    if not any(char.isalpha() for char in text[start : start + unit]):
        return None  # rules of tables, rows of dots
    return Incoherence("KVA402", share, start, end, "a passage repeats itself")


def _compresses_little(text: str, share: float) -> bool:
    data = text.encode("utf-8", "replace")
    return len(zlib.compress(data, 1)) > len(data) * share


def _longest_loop(text: str) -> tuple[int, int, int] | None:
    """Return (start, end, period) of the loop that the answer's end or middle is in."""
    best: tuple[int, int, int] | None = None
    for anchor in (len(text), len(text) * 3 // 4):
        found = _loop_ending_at(text, anchor)
        if found is not None and (best is None or found[1] - found[0] > best[1] - best[0]):
            best = found
    return best


def _loop_ending_at(text: str, anchor: int) -> tuple[int, int, int] | None:
    probe = text[max(0, anchor - 24) : anchor]
    before = text.rfind(probe, max(0, anchor - 24 - _UNIT_CHARS_MAX), anchor - 1)
    if before < 0 or len(probe) < 24:
        return None
    period = anchor - 24 - before
    if period <= 0:
        return None
    start = anchor
    while start - period >= 1 and text[start - 1] == text[start - 1 - period]:
        start -= 1
    end = anchor
    while end < len(text) and text[end] == text[end - period]:
        end += 1
    return max(0, start - period), end, period


def _salad(text: str, prompt: str) -> Incoherence | None:
    """KVA403: replacement characters, or several scripts mixed inside sentences, unasked."""
    if len(text) < SALAD_CHARS_MIN or text.isascii() or _SCRIPTS_ASKED.search(prompt):
        return None
    replaced = text.count("\ufffd")
    if replaced / len(text) > 0.1 and "\ufffd" not in prompt:
        return Incoherence("KVA403", replaced / len(text), 0, len(text), "replacement characters")
    wanted = set(_scripts(prompt[-4_000:]))
    counts = _scripts(text[:8_000])
    unasked = {script: n for script, n in counts.items() if script not in wanted and n >= 4}
    letters = sum(counts.values())
    share = sum(unasked.values()) / letters if letters else 0.0
    # A list of translations changes its script from line to line, salad within one.
    switches = max(map(_switches, text[:8_000].splitlines()), default=0)
    if len(unasked) >= 3 and share >= 0.1 and (switches >= 5 or _switches(text[:8_000]) >= 8):
        return Incoherence("KVA403", share, 0, len(text), "scripts mixed that nobody asked for")
    return None


def _script_of(char: str) -> str | None:
    if not char.isalpha():
        return None
    if char.isascii():
        return "LATIN"
    name = unicodedata.name(char, "").split(" ", 1)[0]
    return {"HIRAGANA": "CJK", "KATAKANA": "CJK", "FULLWIDTH": "LATIN"}.get(name, name) or None


def _scripts(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for char in text:
        script = _script_of(char)
        if script is not None:
            counts[script] = counts.get(script, 0) + 1
    return counts


def _switches(text: str) -> int:
    """Return how often the script changes from one letter to the next."""
    switches, last = 0, None
    for char in text:
        script = _script_of(char)
        if script is not None:
            switches += last is not None and script != last
            last = script
    return switches


def is_empty_answer(
    text: str, *, other_text: str, produced: int | None, finish_reasons: tuple[str, ...]
) -> bool:
    """KVA405: tokens were spent and nothing came: no text, no reasoning, no tool call.

    Args:
        text: The visible answer.
        other_text: Reasoning and tool calls.
        produced: Completion tokens as reported.
        finish_reasons: As reported; only a plain `stop` is odd with an empty answer.
    """
    if text.strip() or other_text.strip() or not produced:
        return False
    return bool(finish_reasons) and set(finish_reasons) == {"stop"} and produced > 1

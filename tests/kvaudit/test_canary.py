"""Canaries: minted again from the same secret, far apart, with a known chance."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.canary import (
    CODE_ALPHABET,
    CODE_EDITS_APART,
    CODE_LENGTH,
    WORDS,
    CanaryMint,
    chance_of_code,
    chance_of_words,
    edit_distance,
    word_list,
)

short_text = st.text("abc", max_size=8)


def slow_edit_distance(first, second):
    previous = list(range(len(second) + 1))
    for row, one in enumerate(first, start=1):
        current = [row]
        for column, other in enumerate(second, start=1):
            current.append(
                min(
                    previous[column] + 1,
                    current[-1] + 1,
                    previous[column - 1] + (one != other),
                )
            )
        previous = current
    return previous[-1]


@given(short_text, short_text)
def test_the_bit_parallel_distance_is_the_table_s(first, second):
    assert edit_distance(first, second) == slow_edit_distance(first, second)


def test_the_same_secret_and_labels_mint_the_same_canaries():
    labels = [f"r{number}" for number in range(20)]
    one, two = CanaryMint("s"), CanaryMint("s")
    assert [one.mint(label, "a") for label in labels] == [two.mint(label, "a") for label in labels]


def test_another_secret_or_label_mints_another_canary():
    canaries = [CanaryMint(s).mint(label, "a") for s in "xy" for label in ("r1", "r2")]
    assert len({canary.code for canary in canaries}) == 4
    assert len({canary.words for canary in canaries}) == 4


def test_codes_of_one_mint_are_far_apart():
    mint = CanaryMint("s", alphabet="AB")
    for number in range(6):  # two letters only, so that redraws happen
        mint.mint(f"r{number}", "a")
    mint.check_integrity()


def test_words_of_a_canary_are_different_and_from_the_list():
    canary = CanaryMint("s").mint("r", "a")
    assert len(set(canary.words)) == WORDS
    assert set(canary.words) <= set(word_list())
    assert len(canary.code) == CODE_LENGTH
    assert set(canary.code) <= set(CODE_ALPHABET)
    assert canary.code_text.replace("-", "") == canary.code


def test_the_word_list_is_512_words_pairwise_three_edits_apart():
    words = word_list()
    assert len(words) == len(set(words)) == 512
    near = [
        (one, two)
        for one, two in itertools.combinations(words, 2)
        if abs(len(one) - len(two)) < 3 and edit_distance(one, two) < 3
    ]
    assert near == []


def test_the_alphabet_has_no_look_alikes():
    assert len(set(CODE_ALPHABET)) == 32
    assert not set("IO01") & set(CODE_ALPHABET)


@pytest.mark.parametrize(("words", "expected"), [(4, 178), (5, 0.0434), (6, 1.06e-5), (7, 2.6e-9)])
def test_six_words_of_4096_are_no_accident_in_a_hundred_million_answers(words, expected):
    canary = CanaryMint("s", words=[f"w{n}" for n in range(4096)]).mint("r", "a")
    chance = chance_of_words(canary, words=words, positions=500 * 10**8, canaries=10**6)
    starts = WORDS - words + 1
    assert chance == pytest.approx(min(1, starts * expected), rel=0.03)


def test_a_code_with_edits_is_likelier_than_an_exact_one_and_never_above_one():
    canary = CanaryMint("s").mint("r", "a")
    chances = [
        chance_of_code(canary, positions=10**6, canaries=100, edits=edits) for edits in range(4)
    ]
    assert chances == sorted(chances)
    assert chances[0] == pytest.approx(10**8 / 32**16)
    assert chance_of_code(canary, positions=10**12, canaries=10**9, edits=10) == 1
    assert CODE_EDITS_APART > 2 * 2

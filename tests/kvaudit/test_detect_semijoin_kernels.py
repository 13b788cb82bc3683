"""The kernels of the semi-join against slow twins."""

import random
import unicodedata

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from semijoin_logs import slow_fold, slow_grams, slow_length

from kvaudit.detect.semijoin import extension_kernels, kernels, scan_kernels
from kvaudit.detect.semijoin.arrays import PIECE
from kvaudit.detect.semijoin.folded_texts import fold_all
from kvaudit.detect.semijoin.grams import AnswerGrams
from kvaudit.detect.semijoin.scan import gram_hashes, texts_of

# Letters of all classes, what folds, what is dropped, and barriers.
ALPHABET = "abAB01 .*_\n\0éÉßİﬃ½①Ωωйё中文字かガｶ한국ไทยकख𝔸𠀀﷽ﷺ\u0301—"
texts = st.text(st.sampled_from(ALPHABET), max_size=120)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(st.lists(st.one_of(texts, any_text), min_size=1, max_size=4))
@example(["ﷺ" * 2000])  # folds to ten times its size
@example(["é"])
def test_a_fold_is_that_of_its_characters(found: list[str]) -> None:
    folded = fold_all(found)
    end = 0
    for number, text in enumerate(found):
        begin, end = end + 1, int(folded.ends[number])
        slow = slow_fold(text)
        assert folded.buffer[begin:end].tobytes() == bytes(byte for byte, _ in slow)
        raw = folded.raw[begin:end].astype(np.int64) - folded.begins[number]
        assert raw.tolist() == [offset for _, offset in slow]
        assert folded.buffer[begin - 1] == folded.buffer[end] == 0, "barriers round each text"


# Jamo that NFKC joins to a syllable are the one exception: syllables are not taken apart.
_jamo = st.characters(
    exclude_categories=["Cs"], exclude_characters=[*map(chr, range(0x1100, 0x1200))]
)


@given(
    st.text(_jamo, max_size=30).filter(
        lambda text: not any("ㄱ" <= char <= "ㆎ" or "ﾡ" <= char <= "ￜ" for char in text)
    )
)
@example("e\u0301É ﬁ Ⅷ ½")
def test_what_nfkc_and_case_folding_make_equal_is_equal(text: str) -> None:
    def folded(found: str) -> list[int]:
        return [byte for byte, _ in slow_fold(found)]

    assert folded(unicodedata.normalize("NFKC", text)) == folded(text)
    assert folded(unicodedata.normalize("NFKC", text.casefold())) == folded(text)


def _sampled(text: str) -> set[int]:
    return set(gram_hashes([text]).tolist())


@given(texts, texts)
def test_sampled_grams_are_grams(left: str, right: str) -> None:
    """Texts share a sampled hash only if they share a gram, and share all those that they do."""
    common = slow_grams(left).keys() & slow_grams(right).keys()
    shared = _sampled(left) & _sampled(right)
    assert len(shared) <= len(common)
    if left == right:
        assert len(_sampled(left)) <= len(slow_grams(left))
    assert _sampled(left + "\0" + right) == _sampled(left) | _sampled(right)


@pytest.mark.parametrize(
    ("letters", "share"),
    [
        ("abcdefghij0123456789", 0.25),
        ("абвгдежзик", 0.5),
        ("กขคงจฉชซ", 0.5),
        ("中文字学生人大小", 0.5),
    ],
)
def test_the_share_of_grams_that_is_sampled_is_that_of_the_script(
    letters: str, share: float
) -> None:
    rng = random.Random(5)
    text = "".join(rng.choice(letters) for _ in range(20_000))
    found = len(_sampled(text)) / len(slow_grams(text))
    assert found == pytest.approx(share, abs=0.02)


def test_a_text_longer_than_a_piece_has_the_grams_of_its_parts() -> None:
    rng = random.Random(6)
    alphabet = ALPHABET.replace("\0", "")
    text = "".join(rng.choice(alphabet + "cdefghij" * 9) for _ in range(3 * PIECE))
    windows = [text[at : at + 2_000] for at in range(0, len(text), 1_000)]
    assert _sampled(text) == set().union(*map(_sampled, windows))


def test_the_length_of_a_gram_is_that_of_its_script() -> None:
    assert [kernels.gram_length_of(byte) for byte in range(256)] == [
        slow_length(byte) for byte in range(256)
    ]


@given(st.lists(st.tuples(st.integers(0, 3), texts), max_size=6), st.sampled_from([1, 2, 4]))
def test_the_table_holds_each_hash_once_and_its_range_alone(
    rows: list[tuple[int, str]], parts: int
) -> None:
    found: list[int] = []
    for part in range(parts):
        grams = AnswerGrams(part=part, parts=parts, bytes_max=1 << 30)
        column = texts_of(pl.Series([text for _, text in rows], dtype=pl.String))
        owners = np.array([owner for owner, _ in rows], np.int32)
        owners.flags.writeable = False
        grams.add(column.data, column.offsets, owners)
        grams.check_integrity()
        keys = grams.slots.keys
        found += keys[keys != 0].tolist()
        for slot in np.flatnonzero(keys):
            owners_of = {owner for owner, text in rows if int(keys[slot]) in _sampled(text)}
            is_shared = bool(grams.slots.flags[slot] & scan_kernels.MANY)
            assert is_shared == (len(owners_of) > 1)
            assert int(grams.slots.owners[slot]) in owners_of
    assert sorted(found) == sorted(set().union(*(_sampled(text) for _, text in rows)))


def test_a_table_that_outgrows_its_memory_keeps_one_range_of_hashes() -> None:
    rng = random.Random(7)
    text = "".join(rng.choice("abcdefghijklmnop") for _ in range(600_000))
    raw = np.frombuffer(text.encode(), np.uint8)
    offsets, owners = np.array([0, raw.size]), np.zeros(1, np.int32)
    offsets.flags.writeable = owners.flags.writeable = False
    grams = AnswerGrams(part=0, parts=1, bytes_max=1 << 20)
    grams.add(raw, offsets, owners)
    grams.check_integrity()
    assert grams.parts > 1
    keys = grams.slots.keys[grams.slots.keys != 0].tolist()
    assert set(keys) == {
        found
        for found in _sampled(text)
        if scan_kernels.part_of(np.uint64(found), grams.parts) == 0
    }


def _slow_runs(sink: str, source: str, length: int) -> set[tuple[int, int, int]]:
    """All maximal common stretches of at least `length`, by comparing every place with every."""
    found = set()
    for s in range(len(sink)):
        for t in range(len(source)):
            if s and t and sink[s - 1] == source[t - 1]:
                continue
            size = 0
            while (
                s + size < len(sink)
                and t + size < len(source)
                and sink[s + size] == source[t + size]
            ):
                size += 1
            if size >= length:
                found.add((s, t, size))
    return found


words = st.lists(st.sampled_from(["alphabet", "beta", "gammaray", "delta", "epsilon9"]), max_size=9)


@given(words, words)
@settings(max_examples=40)
def test_seeds_grow_to_the_maximal_runs(left: list[str], right: list[str]) -> None:
    sink, source = "".join(left), "".join(right)
    slow = _slow_runs(sink, source, 16)
    grams = slow_grams(source)
    seeds = sorted(
        {(s, t) for gram, at in slow_grams(sink).items() for s in at for t in grams.get(gram, [])}
    )
    if not seeds:
        assert not slow
        return
    runs = _runs(sink, source, seeds)
    assert slow <= set(runs)
    assert all(sink[s : s + size] == source[t : t + size] for s, t, size in runs)


def _runs(sink: str, source: str, seeds: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    folded, held = fold_all([sink]), fold_all([source])
    size = 3 * len(seeds) + 64
    runs, ends = np.zeros((size, 3), np.int64), np.zeros(1, np.int64)
    extension_kernels.find_runs(
        folded.buffer, held.buffer, folded.raw, held.raw, np.array(seeds) + 1,
        np.array([len(seeds)]), runs, ends, np.zeros(len(seeds), np.int64),
    )  # fmt: skip
    return [(int(run[0]) - 1, int(run[1]) - 1, int(run[2])) for run in runs[: ends[0]]]


def test_an_edit_is_stepped_over_to_a_stretch_that_holds_no_gram() -> None:
    sink = "whentheserverrestarts" + "quickly" + "alltenants" + "zz"
    source = "whentheserverrestarts" + "slow" + "alltenants" + "yy"
    runs = _runs(sink, source, [(0, 0)])
    assert [sink[s : s + size] for s, _, size in runs] == ["whentheserverrestarts", "alltenants"]


@given(st.lists(st.integers(-3, 3), max_size=40))
def test_the_sort_is_stable(keys: list[int]) -> None:
    order = np.arange(len(keys))
    extension_kernels.sort_by(np.array(keys, np.int64), order)
    assert order.tolist() == sorted(range(len(keys)), key=lambda index: keys[index])


@given(texts, st.data())
def test_characters_are_counted_from_the_start_of_their_text(
    text: str, data: st.DataObject
) -> None:
    folded = fold_all(["é", text])
    begin, end = int(folded.ends[0]) + 1, int(folded.ends[1])
    if begin == end:
        return
    start = data.draw(st.integers(begin, end - 1))
    stop = data.draw(st.integers(start + 1, end))
    first, last = folded.characters(np.array([1]), np.array([start]), np.array([stop]))
    raw = [offset for _, offset in slow_fold(text)]
    before = text.encode()[: raw[start - begin]].decode()
    assert first[0] == len(before)
    assert last[0] == len(text.encode()[: raw[stop - 1 - begin]].decode()) + 1


def test_without_a_writable_cache_kernels_compile_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_locator(*, cache: bool) -> object:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels, "_compiler", no_locator)
    assert kernels.compiled(len)([1, 2]) == 2

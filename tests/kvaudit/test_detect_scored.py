"""The weight of matches, the decoys, the values: what a scan's findings rest on."""

import json
import random
import sys
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest

from kvaudit.detect.scored.bleed import find_bled_values
from kvaudit.detect.scored.char_model import shipped_model, spelled
from kvaudit.detect.scored.decoys import Counted, Moment, calibrate, null_rate
from kvaudit.detect.scored.fresh_text import fresh_contexts
from kvaudit.detect.scored.own_words import OwnWords, stems_of
from kvaudit.detect.scored.public_text import shipped_public_text
from kvaudit.detect.scored.score import Score, Scorer, words_of
from kvaudit.detect.scored.values import fold_value, masked_values_of, values_of
from kvaudit.detect.scored.weighing import is_same_ask, weigh
from kvaudit.detect.semijoin.find import find_matches
from kvaudit.detect.semijoin.texts import SCHEMA, Match, SemiJoinSettings
from kvaudit.errors import ConfigError
from kvaudit.scan.canary_list import read_canaries
from kvaudit.scan.foreign import paired

TOOLS = Path(__file__).parents[1] / "tools"


def loaded(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


class Rows:
    """A TextSource in memory: (organisation, context, answer), ten seconds apart."""

    def __init__(self, rows: list[tuple[int, str, str]]) -> None:
        made = [
            (at, owner, owner, None, at * 10**7, at * 10**7 + 10**6, None, context, answer)
            for at, (owner, context, answer) in enumerate(rows)
        ]  # fmt: skip
        self.frame = pl.DataFrame(made, schema=SCHEMA, orient="row")

    def batches(self, columns: list[str]):  # type: ignore[no-untyped-def]
        yield self.frame.select(columns)

    def fetch(self, rows: list[int], column: str) -> dict[int, str]:
        held = self.frame.filter(pl.col("row").is_in(list(rows)))
        return dict(zip(held["row"], held[column], strict=True))


def scorer() -> Scorer:
    return Scorer(shipped_model(), shipped_public_text())


def score(shared: str, own: str = "", **more: float) -> Score:
    return scorer().score(shared, shared, words_of(own), edits=int(more.get("edits", 0)), share=1.0)


def test_rare_words_weigh_more_than_everyday_ones_of_the_same_length() -> None:
    everyday = sum(shipped_model().bits_of(spelled("the name of the file that is used")))
    rare = sum(shipped_model().bits_of(spelled("Brennick Ferries sold Tallow Wharf")))
    assert rare > 2 * everyday


def test_what_the_own_context_holds_weighs_little_and_edits_cost() -> None:
    text = "the silence clause covers the dredging survey"
    assert score(text, own=text).bits < 20 < 100 < score(text).bits
    assert score(text, edits=2).bits == pytest.approx(score(text).bits - 16)


def test_a_number_weighs_more_than_the_model_says_and_a_date_less() -> None:
    assert score("invoice OR-88589").bits > score("invoice of today").bits
    assert score("2026-10-05T08:00:00Z").bits < 30


def test_known_text_weighs_nothing() -> None:
    assert score("Yea, though I walk through the valley of the shadow of death").bits == 0
    assert score("Yes, as I walked along the alley in the shadow of Keth").bits > 100


def test_every_script_has_a_model_of_its_own() -> None:
    model = shipped_model()
    for text in ("договор о поставке", "σύμβαση προμήθειας", "عقد التوريد", "供货合同已签署"):
        bits = model.bits_of(spelled(text))
        assert 0.5 < sum(bits) / len(bits) < 16


def moment(owner: int, second: int) -> Moment:
    return Moment(organisation=owner, start_us=second * 10**6, end_us=second * 10**6 + 1,
                  fresh_bytes=1_000, has_answer=True)  # fmt: skip


def pairs(count: int, bits: float, *, decoy: bool) -> list[Counted]:
    """Pairs in the middle of a log of 1,000 seconds, well within equal windows."""
    sink, apart = moment(1, 500), moment(2, 520 if decoy else 480)
    return [Counted(bits, "prompt", decoy, sink, apart)] * count


LOG = [moment(second % 7, second) for second in range(1_000)]


def test_a_hundred_leaks_without_a_decoy_pass() -> None:
    found = calibrate(LOG, pairs(100, 200.0, decoy=False))
    assert (found.targets["prompt"], found.decoys["prompt"]) == (100, 0)
    assert found.q_value(200.0, "prompt") == pytest.approx(0.01)


def test_as_many_decoys_as_targets_pass_nothing_and_stronger_ones_still_do() -> None:
    noise = [*pairs(100, 60.0, decoy=False), *pairs(100, 60.0, decoy=True)]
    found = calibrate(LOG, [*noise, *pairs(50, 200.0, decoy=False)])
    weak, strong = found.q_value(60.0, "prompt"), found.q_value(200.0, "prompt")
    assert weak is not None
    assert strong is not None
    assert weak > 0.5
    assert strong == pytest.approx(0.02)
    assert found.is_counted(60.0, "prompt")


def test_too_few_targets_are_not_counted_but_weighed() -> None:
    found = calibrate(LOG, pairs(19, 200.0, decoy=False))
    assert found.q_value(200.0, "prompt") is None
    assert "fewer than 20" in found.reasons["prompt"]
    assert found.pairs == 1_000 * 1_000 * 6 // 7 // 2
    weak, strong = (found.expected_accidents(bits, "prompt") for bits in (100.0, 400.0))
    assert strong < 0.01 < weak


def test_a_few_strong_targets_among_noise_are_weighed_and_not_counted_away() -> None:
    noise = [*pairs(100, 60.0, decoy=False), *pairs(100, 60.0, decoy=True)]
    found = calibrate(LOG, [*noise, *pairs(3, 500.0, decoy=False)])
    assert not found.is_counted(500.0, "prompt")


def test_without_times_nothing_is_counted() -> None:
    timeless = [Moment(organisation=at % 3, start_us=None, end_us=None, fresh_bytes=9,
                       has_answer=True) for at in range(30)]  # fmt: skip
    assert calibrate(timeless, []).reasons["answer"] == "no usable order in time"


def test_the_null_falls_with_the_score() -> None:
    rates = [null_rate(bits, "prompt") for bits in range(20, 400, 20)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 1e-9


@pytest.mark.parametrize(("text", "folded"), [
    ("no. HX4TR-99B71-QQ803.", "hx4tr99b71qq803"), ("is hx4tr 99b71 qq8o3 now", "hx4tr99b71qq803"),
    ("card 4410 9937 2285 6018", "4410993722856018"),
])  # fmt: skip
def test_a_value_is_the_same_however_it_is_spelled(text: str, folded: str) -> None:
    assert folded in {value.folded for value in values_of(text)}
    assert fold_value("HX4TR-99B71-QQ803") == "hx4tr99b71qq803"


@pytest.mark.parametrize("text", [
    "on 2026-10-05", "20261005", "10.10.10.100 or 192.168.100.100", "12345678", "00000000",
    "1,234,567.00", "order 5520", "QH-1599", "internationalisation",
])  # fmt: skip
def test_dates_counts_addresses_and_short_numbers_are_no_values(text: str) -> None:
    assert not list(values_of(text))


@pytest.mark.parametrize("text", [
    "HX4TR-*****-QQ803", "HX4TR…QQ803", "HX4TRxxxxxQQ803", "HX4TR-[REDACTED]-QQ803",
    "HX4TR ••• QQ803",
])  # fmt: skip
def test_a_masked_value_keeps_both_ends(text: str) -> None:
    (found,) = list(masked_values_of(f'"chassis": "{text}"'))
    assert (found.head, found.tail) == ("hx4tr", "qq803")
    assert "chassis" in found.fields


def bled(*rows: tuple[int, str, str]) -> list[tuple[int, int]]:
    found = find_bled_values(Rows(list(rows)), shipped_public_text(), skew_us=0)
    return [(item.sink_row, item.source_row) for item in found]


def test_a_foreign_value_is_found_and_an_own_one_is_not() -> None:
    form = "Chassis no. HX4TR-99B71-QQ803."
    assert bled((1, form, "ok"), (2, "blank", "chassis hx4tr 99b71 qq8o3")) == [(1, 0)]
    assert bled((1, form, "ok"), (2, "HX4TR 99B71 QQ803", "chassis hx4tr99b71qq8o3")) == []
    assert bled((1, form, "ok"), (1, "blank", "chassis hx4tr99b71qq8o3")) == []


def test_a_masked_value_needs_its_field_or_its_layout() -> None:
    form = "Chassis no. HX4TR-99B71-QQ803."
    assert bled((1, form, "ok"), (2, "", "chassis HX4TR***QQ803")) == [(1, 0)]
    assert bled((1, form, "ok"), (2, "", "it says HX4TR-*****-QQ803")) == [(1, 0)]
    assert bled((1, form, "ok"), (2, "", "it says HX4TR***QQ803")) == []


def test_a_victim_that_resends_is_no_second_knower() -> None:
    form, told = "Chassis HX4TR-99B71-QQ803.", "It is HX4TR-99B71-QQ803."
    found = bled((1, form, "ok"), (2, "blank", told), (2, told, "sorry"), (3, "blank", told))
    assert found == [(1, 0), (3, 0)]


WORDS = [
    "in",
    "the",
    "Ofen",
    "ΣΊΣΥΦΟΣ",
    "straße",
    "你好世界",
    "世界",
    "हिन्दी",
    "１２３",
    "ab1",
    "12",
]


def test_words_are_searched_for_as_the_slow_way_splits_them() -> None:
    chance = random.Random(7)
    asked = {word for text in WORDS for word in words_of(text + " " + text[:5] + " " + text[1:])}
    for _ in range(400):
        parts = chance.choices([*WORDS, " ", ", ", "_", "-"], k=chance.randrange(30))
        text = "".join(parts)
        own, split = OwnWords(text), words_of(text)
        assert own.among(asked) == asked & split
        # A word of two scripts has the stems of one of them when it is split.
        own, split = OwnWords(" ".join(parts)), words_of(" ".join(parts))
        stems = frozenset(stems_of(asked))
        assert own.stems_among(stems) == stems & frozenset(stems_of(split))


def test_a_word_hidden_in_many_others_is_looked_up_after_all() -> None:
    assert not OwnWords("inside " * 20_000).among({"in"})
    assert OwnWords("inside " * 20_000 + "in").among({"in"}) == {"in"}


def test_what_a_conversation_sends_again_is_not_fresh() -> None:
    def row(at: int, conversation: int | None, start: int | None, text: str) -> tuple[object, ...]:
        return at, 1, 1, conversation, start, None, None, text, ""

    source = Rows([])
    source.frame = pl.DataFrame(
        [row(0, 5, 10, "one two"), row(1, 5, 20, "one two three"), row(2, 5, 30, "one twin"),
         row(3, 5, 25, "one twin"), row(4, 6, 40, "one twin"), row(5, None, 50, "one twin"),
         row(6, None, 60, "one twin"), row(7, None, None, "one")],
        schema=SCHEMA, orient="row",
    )  # fmt: skip
    assert [fresh.begin for fresh in fresh_contexts(source)] == [0, 7, 6, 0, 0, 0, 0, 0]


def test_values_are_found_the_same_from_any_place_on() -> None:
    chance = random.Random(5)
    parts = ["1", "7", "9031", "a", "Bc", "-", ".", ":", "/", " ", "  ", "é", "\n", "foo ", "O0"]
    for _ in range(400):
        text = "".join(chance.choices(parts, k=chance.randrange(5, 80)))
        text = chance.choice(["", "Ab9" * 300, "x 12 " * 150]) + text
        begin = chance.randrange(len(text) + 1)
        every = list(values_of(text))
        assert list(values_of(text, begin)) == [v for v in every if v.start + len(v.text) > begin]
        assert all(text[v.start : v.start + len(v.text)] == v.text for v in every)


def shared(text: str, side: str) -> Match:
    """A match of a whole text in row 1 with row 0."""
    size = len(text)
    return Match(
        sink_row=1, sink_start=0, sink_end=size, source_row=0, source_side=side, source_start=0,
        source_end=size, exact_bytes=size, chained_bytes=size, edits=0, script="ascii",
        is_decoy=False, other_sources=(), prompt_organisations=1, answer_organisations=2,
    )  # fmt: skip


@pytest.mark.parametrize(("organisations", "holders", "is_stock"), [
    (20, 2, False), (19, 2, True), (20, 3, True),
])  # fmt: skip
def test_a_long_line_that_two_of_many_organisations_got_is_no_stock_line(
    organisations: int, holders: int, is_stock: bool
) -> None:
    line = (
        "Grey herons wade along the tidal creek; its quay wall leans, moss-grown, over old barges"
    )
    more = f"{line} and nine lamps."
    texts = ["Which paint do I need?", "How many apples are in the basket?"]
    rows = Rows([(at, texts[at % 2] + f" {at}", more + " So" * 90) for at in range(organisations)])
    match = replace(shared(more, "answer"), answer_organisations=holders)
    (item,) = weigh(rows, [match], scorer())
    assert item.score.bits >= 300
    assert item.is_stock == is_stock


def test_a_further_stretch_adds_only_what_it_has_beyond_an_idiom() -> None:
    texts = ["Mirela Stoian keeps the slipway crane", "on the last day of the month"]
    both = " | ".join(texts)
    rows = Rows([(1, both, ""), (2, "", both)])
    first = shared(texts[0], "prompt")
    at = both.index(texts[1])
    place = {"sink_start": at, "sink_end": len(both), "source_start": at, "source_end": len(both)}
    second = replace(first, **place)
    items = weigh(rows, [first, second], scorer())
    (pair,) = paired(items)
    strong, weak = sorted((item.score.bits for item in items), reverse=True)
    assert pair.bits == pytest.approx(strong + max(0.0, weak - 40.0), abs=0.1)
    assert pair.bits < strong + weak - 30


def test_text_shared_with_answers_is_never_counted_against_decoys() -> None:
    held = [
        Counted(item.bits, "answer", item.is_decoy, item.sink, item.source)
        for item in pairs(100, 200.0, decoy=False)
    ]
    made = calibrate(LOG, held)
    assert made.targets["answer"]
    assert made.q_value(200.0, "answer") is None
    assert "no decoys" in made.reasons["answer"]


def test_short_idioms_are_not_weighed() -> None:
    rows = Rows([(1, "of the last 9 slipways", ""), (2, "", "of the last 9 slipways")])
    match = shared("of the last 9 slipways", "prompt")
    assert weigh(rows, [match], scorer()) == []
    (item,) = weigh(rows, [replace(match, chained_bytes=24)], scorer())
    assert item.shared == "of the last 9 slipways"


def test_equal_asks_are_told_from_equal_beginnings() -> None:
    assert is_same_ask("Why is the sky blue?", "why is the sky blue")
    assert not is_same_ask("You are Pim. Greet all. When is breakfast?",
                           "You are Pim. Greet all. How many grams are in an ounce?")  # fmt: skip


def test_the_semi_join_and_its_slow_twin_name_the_same_sinks_and_sources(tmp_path: Path) -> None:
    naive = loaded(TOOLS / "naive_matcher.py")
    rng = random.Random(5)
    words = [f"{a}{b}{c}" for a in ("bar", "kel", "tos", "mur") for b in ("an", "ide", "ou", "er")
             for c in ("dek", "lin", "sor", "vat")]  # fmt: skip
    rows: list[tuple[int, str, str]] = []
    for number in range(60):
        prompt = " ".join(rng.choices(words, k=40))
        answer = " ".join(rng.choices(words, k=12))
        if number > 20 and number % 3 == 0:
            source = rows[rng.randrange(20)][1].split(" ")
            at = rng.randrange(20)
            answer += " " + " ".join(source[at : at + 14]).upper()
        rows.append((number % 5, prompt, answer))
    source = Rows(rows)
    fast = {
        (m.sink_row, m.source_row, m.is_decoy)
        for m in find_matches(source, tmp_path, SemiJoinSettings())
        if m.chained_bytes > 60
    }
    slow = {
        (m.sink_row, m.source_row, m.is_decoy)
        for m in naive.find_matches(source)
        if m.chained_bytes > 60
    }
    assert fast == slow
    assert len(fast) >= 8


def test_a_list_of_canaries_is_read_from_a_list_lines_or_a_query(tmp_path: Path) -> None:
    entry = {"tenant": "a", "phrase": "one two three four five six", "code": "K7QX-2MNP-ABCD-EFGH"}
    for text in (json.dumps([entry]), json.dumps(entry), json.dumps({"items": [entry]})):
        path = tmp_path / "c.json"
        path.write_text(text)
        (canary,) = read_canaries(path)
        assert canary.code == "K7QX2MNPABCDEFGH"


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '[{"tenant": "a"}]', '[{"tenant": "a",'
    ' "phrase": "one two", "code": "K7QX2MNPABCDEFGH"}]', "7"])  # fmt: skip
def test_a_bad_list_of_canaries_is_refused_with_a_hint(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_canaries(path)
    assert caught.value.hint or "JSON" in caught.value.message

"""The traffic that the scan is measured on: its truth is true, it is what an ingest gives."""

import importlib
import random
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.forensics.load import ingest
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.source import find_files

BENCH = Path(__file__).parents[1] / "bench" / "scan"
ALPHABETS = {"latin": "abcdefghijklmnopqrstuvwxyz", "greek": "αβγδεζηθικλμνξοπρστυφχψω"}


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    sys.path.insert(0, str(BENCH))
    try:
        names = ("texts", "traffic", "writing", "leaks", "evaluate", "unique")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def texts(bench, tmp_path_factory):
    """Documents of invented words, some in Greek, some a header file."""
    folder = tmp_path_factory.mktemp("texts")
    rng = random.Random(5)
    for number in range(220):
        letters = ALPHABETS["greek" if number % 4 == 1 else "latin"]
        words = ["".join(rng.choices(letters, k=rng.randrange(3, 9))) for _ in range(3_000)]
        lines = (" ".join(words[at : at + 12]) for at in range(0, len(words), 12))
        path = folder / "unpacked" / f"p{number % 7}" / f"{number}.{'h' if number % 4 else 'txt'}"
        path = path.with_suffix(".txt") if number % 4 == 1 else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    return bench.texts.Texts(bench.texts.build(folder, small=False))


@pytest.fixture(scope="module")
def log(bench, texts):
    return bench.traffic.planned(_traffic(bench), texts)


def _traffic(bench, **changes):
    settings = {"size": 4_000_000, "seed": 3, "leaks": 24, "tenants": 14} | changes
    return bench.traffic.Traffic(**settings)


def _prompts(bench, log):
    """Return what each request sends, by its number."""
    return {
        request.number: "\n".join(
            [log.texts.text(*conversation.system), *(message["content"] for message in messages)]
        )
        for conversation in log.conversations
        for request, messages in bench.writing.messages_of(log, conversation)
    }


def test_the_named_source_is_the_first_request_that_holds_a_leak(bench, log):
    prompts = _prompts(bench, log)
    assert len(log.leaks) > 24, "the groups come on top"
    for leak in log.leaks:
        source, sink = int(leak.source[1:]), int(leak.sink[1:])
        first = next(
            request.number
            for request in log.requests
            if leak.original in prompts[request.number] or leak.original in request.answer
        )
        assert first == source < sink
        held = prompts[source] if leak.side == "prompt" else log.requests[source].answer
        assert leak.original in held
        assert leak.original not in prompts[sink]
        assert log.requests[sink].answer[leak.start : leak.end] == leak.planted


def test_an_exact_leak_is_planted_as_it_was_and_an_edited_one_is_not(log):
    for leak in log.leaks:
        assert (leak.planted == leak.original) == (leak.edit == "exact"), leak


def test_half_of_a_group_sends_the_leaked_text_again(bench, log):
    prompts = _prompts(bench, log)
    groups = defaultdict(list)
    for leak in log.leaks:
        groups[leak.group].append(leak)
    assert len({leak.source for leak in groups[5]}) == 1
    assert len({leak.sink_tenant for leak in groups[5]}) == 5
    resent = [
        any(
            leak.planted in prompts[request.number]
            for request in log.requests[int(leak.sink[1:]) :]
            if request.conversation.tenant.name == leak.sink_tenant
        )
        for leak in groups[5]
    ]
    assert sum(resent) == 3


def test_the_same_seed_gives_the_same_log(bench, texts, log, tmp_path):
    again = bench.traffic.planned(_traffic(bench), texts)
    other = bench.traffic.planned(_traffic(bench, seed=4), texts)
    answers = [[request.answer for request in made.requests] for made in (log, again, other)]
    assert answers[0] == answers[1] != answers[2]


def test_the_table_is_what_an_ingest_of_the_lines_gives(bench, log, tmp_path):
    bench.writing.written(log, tmp_path, jsonl=True, table=True)
    (tmp_path / "run").mkdir()
    lines = tmp_path / bench.writing.LOG
    made = ingest(find_files([lines]), IngestOptions(), tmp_path / "run", SimulatedClock(0))
    columns = [
        "request_id", "tenant_id", "organisation", "gen_ai_conversation_id", "start_time",
        "end_time", "input_text", "output_text", "context_text", "is_primary",
    ]  # fmt: skip
    read = pl.read_parquet(made.table, columns=columns)
    written = pl.read_parquet(tmp_path / bench.writing.TABLE, columns=columns)
    assert read.equals(written)
    assert len(read) == len(log.requests)


def test_new_prose_of_a_clean_log_stands_in_one_answer_only(bench, log):
    lines = defaultdict(set)
    phrases = {benign.text for benign in log.benign}
    planted = "\n".join(leak.planted for leak in log.leaks)
    for request in log.requests:
        for line in request.answer.split("\n"):
            if len(line) > 60 and line not in planted and not any(line in p for p in phrases):
                lines[line].add(request.conversation.tenant.organisation)
    assert max(len(owners) for owners in lines.values()) == 1


@pytest.mark.parametrize("edit", ["space", "case", "markdown", "words", "mixed"])
def test_an_edit_changes_the_text_and_keeps_most_letters(bench, edit):
    text = "The committee of the harbour board met on Tuesday and approved the dredging survey."
    changed = bench.leaks.edited(text, edit, "latin", ["lantern"], random.Random(2))
    assert changed != text
    folded = {word.strip("*_`>-.#1").lower() for word in changed.split()}
    kept = sum(word.strip(".").lower() in folded for word in text.split())
    assert kept >= len(text.split()) - 2


def test_a_repeated_stretch_is_told_from_a_unique_one(bench, texts):
    everything = np.ones(len(texts), bool)
    unique = bench.unique.Unique(texts, everything, everything)
    assert unique.repeated(texts.text(0), "latin") < 0.05
    texts_twice = SimpleNamespace(
        start=np.concatenate([texts.start, texts.start[:2]]),
        end=np.concatenate([texts.end, texts.end[:2]]),
        script=np.concatenate([texts.script, texts.script[:2]]), data=texts.data,
    )  # fmt: skip
    all_twice = np.ones(len(texts) + 2, bool)
    again = bench.unique.Unique(texts_twice, all_twice, all_twice)
    assert again.repeated(texts.text(0), "latin") == 1

"""`find_matches` end to end: what is found, whose it is, and what is nobody's."""

import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from semijoin_logs import SECOND, MemoryLog, log, prose, request

from kvaudit.detect.semijoin.find import find_matches
from kvaudit.detect.semijoin.scan import gram_hashes
from kvaudit.detect.semijoin.texts import Engine, Match, SemiJoinSettings, TextRow
from kvaudit.errors import StorageError

DUCKDB = SemiJoinSettings()
SECRET = "The launch code for project Halcyon is 4471-ZEBRA, rotated by Morgan each Friday at noon."


def found(source: MemoryLog, folder: Path, options: SemiJoinSettings = DUCKDB) -> list[Match]:
    """The matches, which must be the same from either engine."""
    first, second = (
        find_matches(source, folder / engine, replace(options, engine=engine)) for engine in Engine
    )
    assert first == second
    return first


def row_of(source: MemoryLog, text: str) -> TextRow:
    return next(row for row in source.rows if text in row.context or text in row.answer)


def shown(source: MemoryLog, match: Match) -> tuple[str, str]:
    """The stretch in the sink and in the source."""
    rows = {row.row: row for row in source.rows}
    held = rows[match.source_row]
    text = held.context if match.source_side == "prompt" else held.answer
    return (
        rows[match.sink_row].answer[match.sink_start : match.sink_end],
        text[match.source_start : match.source_end],
    )


def filler(seed: int) -> str:
    return prose(random.Random(seed), 30)


def test_another_organisations_prompt_in_an_answer_is_found_with_its_span(tmp_path: Path) -> None:
    source = log(
        request(1, 0, f"{filler(1)} é {SECRET}", filler(2)),
        request(2, 60, filler(3), f"{filler(4)}: ** {SECRET.upper()} ** {filler(5)}"),
    )
    (match,) = found(source, tmp_path)
    sink, held = shown(source, match)
    assert held == SECRET[:-1]
    assert sink == SECRET[:-1].upper()
    assert (match.sink_row, match.source_row) == (4, 1)
    assert (match.source_side, match.script, match.edits) == ("prompt", "ascii", 0)
    assert match.exact_bytes == match.chained_bytes == sum(map(str.isalnum, SECRET))
    assert (match.prompt_organisations, match.answer_organisations) == (1, 1)
    assert not match.is_decoy


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Пароль от сервера Альфа хранится у Марины Ивановой", "two-byte"),
        ("Ο κωδικός του διακομιστή βρίσκεται στο συρτάρι του γραφείου", "two-byte"),
        ("服务器的密码保存在王小明的抽屉里面请勿告诉别人", "cjk"),
        ("서버 비밀번호는 김철수의 서랍에 보관되어 있습니다 절대 공유 금지", "cjk"),
        ("सर्वर का पासवर्ड राजेश कुमार की दराज में सुरक्षित रखा हुआ है", "two-byte"),
    ],
)
def test_every_script_is_found(tmp_path: Path, text: str, script: str) -> None:
    source = log(
        request(1, 0, f"{filler(1)}\n{text}\n", "ok"),
        request(2, 60, filler(3), f"{filler(4)} {text.casefold()} {filler(5)}"),
    )
    (match,) = found(source, tmp_path)
    assert match.script == script
    sink, held = shown(source, match)
    assert held in text
    assert len(held) > len(text) - 4
    assert sink == held.casefold()


def test_small_edits_are_chained(tmp_path: Path) -> None:
    words = prose(random.Random(9), 60).split()
    edited = [word if at % 20 != 10 else "changed" for at, word in enumerate(words)]
    source = log(request(1, 0, " ".join(words), "ok"), request(2, 60, filler(3), " ".join(edited)))
    (match,) = found(source, tmp_path)
    assert match.edits == 3
    assert match.chained_bytes >= len("".join(words)) - 3 * 10
    assert match.exact_bytes < match.chained_bytes


def test_no_match_crosses_a_barrier(tmp_path: Path) -> None:
    half = len(SECRET) // 2
    apart = "\0".join(SECRET[at : at + 14] for at in range(0, len(SECRET), 14))
    source = log(
        request(1, 0, SECRET, "ok"),
        request(2, 60, filler(3), apart),
        request(3, 120, filler(4), SECRET[:half] + "\0" + SECRET[half:]),
    )
    matches = found(source, tmp_path)
    assert {match.sink_row for match in matches} == {7}
    assert [shown(source, match)[0].strip(" ,.-") for match in matches] == [
        SECRET[:half].strip(" -"), SECRET[half:].strip(" .")
    ]  # fmt: skip


@pytest.mark.parametrize("victims", [1, 5, 50])
def test_one_text_in_the_answers_of_many_has_one_source(tmp_path: Path, victims: int) -> None:
    rows = [request(0, 0, f"{filler(0)} {SECRET} {filler(1)}", filler(2))]
    for victim in range(1, victims + 1):
        answer = f"{filler(100 + victim)} {SECRET} {filler(300 + victim)}"
        rows.append(request(victim, 60 * victim, filler(500 + victim), answer))
        if victim % 2:
            resent = f"{rows[-1].context}\0{answer}\0{filler(700 + victim)}"
            rows.append(request(victim, 60 * victim + 9_000, resent, filler(900 + victim)))
    source = log(*rows)
    matches = [match for match in found(source, tmp_path) if match.chained_bytes > 60]
    leaked = {row.row for row in source.rows if SECRET in row.answer}
    assert {match.sink_row for match in matches} == leaked
    assert len(leaked) == victims
    assert {match.source_row for match in matches} == {1}
    assert {match.prompt_organisations for match in matches} == {1}
    assert {match.answer_organisations for match in matches} == {victims}
    assert not any(match.is_decoy for match in matches)
    last = max(matches, key=lambda match: match.sink_row)
    assert len(last.other_sources) == min(victims - 1, 16)


def test_a_source_from_after_the_end_is_a_decoy(tmp_path: Path) -> None:
    source = log(
        request(1, 100, SECRET, "ok"),
        request(2, 0, filler(1), SECRET, seconds=10),
        request(3, 20, filler(2), filler(3), seconds=10),
    )
    (match,) = found(source, tmp_path)
    assert match.is_decoy
    (match,) = found(source, tmp_path / "skewed", SemiJoinSettings(skew_us=95 * SECOND))
    assert not match.is_decoy
    overlapping = log(request(1, 5, SECRET, "ok"), request(2, 0, filler(1), SECRET, seconds=10))
    (match,) = found(overlapping, tmp_path / "overlapping")
    assert not match.is_decoy


def test_two_answers_are_a_pair_once_from_the_earlier_to_the_later(tmp_path: Path) -> None:
    source = log(request(1, 50, filler(1), SECRET), request(2, 0, filler(2), SECRET))
    (match,) = found(source, tmp_path)
    assert (match.sink_row, match.source_row, match.source_side) == (1, 4, "answer")
    assert not match.is_decoy


def test_two_answers_under_way_together_are_a_pair_once_and_not_both_ways(tmp_path: Path) -> None:
    source = log(
        request(1, 0, filler(1), f"{filler(2)} {SECRET}"),
        request(2, 1, filler(3), f"{filler(4)} {SECRET}"),
    )
    assert [(match.sink_row, match.source_row) for match in found(source, tmp_path)] == [
        (source.rows[1].row, source.rows[0].row)
    ]


def test_what_the_own_organisation_held_is_no_match(tmp_path: Path) -> None:
    leak = request(1, 0, f"{filler(1)} {SECRET}", "ok")
    own = request(2, 60, f"Please repeat: {SECRET}", SECRET)
    earlier = request(2, 30, SECRET, "ok", conversation=7)
    sister = request(2, 20, SECRET, "ok", tenant=9)
    victim = request(2, 60, filler(2), SECRET, conversation=8)
    assert not found(log(leak, own), tmp_path / "own")
    assert not found(log(leak, earlier, victim), tmp_path / "earlier")
    assert not found(log(leak, sister, victim), tmp_path / "sister")
    later = replace(earlier, start_us=500 * SECOND, end_us=501 * SECOND)
    assert len(found(log(leak, later, victim), tmp_path / "later")) == 1


def test_an_own_phrase_next_to_a_leak_does_not_lengthen_it(tmp_path: Path) -> None:
    phrase = "Dear customer, thank you for getting in touch with our service desk today"
    source = log(
        request(1, 0, f"{phrase} {SECRET}", "ok"),
        request(2, 60, f"{phrase} {filler(3)}", f"{phrase} {SECRET}"),
    )
    (match,) = found(source, tmp_path)
    sink, _ = shown(source, match)
    assert len(SECRET) - 1 <= len(sink) <= len(SECRET) + 25


def test_what_three_organisations_sent_is_nobodys(tmp_path: Path) -> None:
    public = [request(at, at, f"{filler(at)} {SECRET}", "ok") for at in (1, 2, 3)]
    sink = request(9, 60, filler(10), SECRET)
    assert not found(log(*public, sink), tmp_path / "three")
    matches = found(log(*public[:2], sink), tmp_path / "two")
    assert [match.prompt_organisations for match in matches] == [2]
    hashes = tuple(gram_hashes([SECRET]).tolist())
    options = SemiJoinSettings(background=hashes)
    assert not found(log(public[0], sink), tmp_path / "corpus", options)


def test_the_first_origin_is_exact_though_resent_text_is_skipped(tmp_path: Path) -> None:
    """Conversation 1 is read first and sent last; its long prefix hides the secret from a scan."""
    document = f"{prose(random.Random(3), 900)} {SECRET} {prose(random.Random(4), 900)}"
    source = log(
        request(1, 5_000, document, "ok", conversation=1),
        request(1, 6_000, f"{document}\0more", "ok", conversation=1),
        request(1, 10, f"{document}\0a question", "ok", conversation=2),
        request(1, 20, f"{document}\0another", "ok", conversation=2),
        request(2, 7_000, filler(1), SECRET),
        request(3, 500, filler(2), SECRET),
    )
    matches = found(source, tmp_path)
    first = row_of(source, "a question")
    assert [match.source_row for match in matches] == [first.row, first.row]
    assert not any(match.is_decoy for match in matches)


def test_a_replica_has_no_source_on_another(tmp_path: Path) -> None:
    def log_with(replica: int | None) -> MemoryLog:
        return log(
            request(1, 0, SECRET, "ok", replica=1),
            request(3, 30, SECRET, "ok", replica=replica),
            request(2, 60, filler(1), SECRET, replica=2),
        )

    options = SemiJoinSettings(use_replicas=True)
    assert not found(log_with(1), tmp_path / "other", options)
    for replica in (2, None):
        (match,) = found(log_with(replica), tmp_path / f"own-{replica}", options)
        assert match.source_row == 7
    (match,) = found(log_with(2), tmp_path / "any")
    assert match.source_row == 1


def test_a_row_without_a_time_can_be_a_source_and_no_decoy(tmp_path: Path) -> None:
    untimed = request(1, 0, SECRET, "ok", start_us=None, end_us=None)
    (match,) = found(log(untimed, request(2, 60, filler(1), SECRET)), tmp_path / "source")
    assert not match.is_decoy
    sink = request(2, 0, filler(1), SECRET, start_us=None, end_us=None)
    (match,) = found(log(request(1, 99, SECRET, "ok"), sink), tmp_path / "sink")
    assert not match.is_decoy


def test_a_log_without_answers_or_rows_has_no_match(tmp_path: Path) -> None:
    assert not found(log(), tmp_path / "empty")
    assert not found(log(request(1, 0, SECRET, ""), request(2, 9, SECRET, "")), tmp_path / "none")


def busy_log(seed: int) -> MemoryLog:
    """Turns that resend what came before, leaks of all lengths, and long answers."""
    rng = random.Random(seed)
    rows: list[TextRow] = []
    for conversation in range(60):
        owner, at, context = rng.randrange(12), rng.randrange(90_000), prose(rng, 300)
        for _ in range(rng.randint(1, 5)):
            context += "\0" + prose(rng, rng.randint(5, 400))
            answer = prose(rng, 60)
            if rows and rng.random() < 0.5:
                words = rng.choice(rows).context.replace("\0", " ").split()
                begin = rng.randrange(len(words))
                answer += " " + " ".join(words[begin : begin + rng.randint(8, 90)])
            rows.append(request(owner, at, context, answer, conversation=conversation))
            context += "\0" + answer
            at += rng.randint(10, 500)
    return log(*rows, size=17)


def test_little_memory_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = busy_log(11)
    ample = found(source, tmp_path / "ample")
    assert len(ample) > 40
    scanned = tmp_path / "tight" / "duckdb" / "scanned"
    monkeypatch.setattr("kvaudit.detect.semijoin.grams._SLOTS_MIN", 1 << 16)
    monkeypatch.setattr("kvaudit.detect.semijoin.grams.LOAD_MAX", 0.52)
    monkeypatch.setattr("kvaudit.detect.semijoin.scan._OUT_ROWS", 9_000)
    monkeypatch.setattr("kvaudit.detect.semijoin.extension.CHUNK_BYTES", 9_000)
    tight = found(source, tmp_path / "tight", SemiJoinSettings(memory_bytes=24 << 20))
    assert tight == ample
    assert len(list(scanned.glob("contexts-*.parquet"))) > 1


def test_progress_tells_steps_and_bytes(tmp_path: Path) -> None:
    source = busy_log(12)
    told = []
    find_matches(source, tmp_path, DUCKDB, told.append)
    steps = list(dict.fromkeys(progress.step for progress in told))
    assert steps == [
        "reading answers", "reading contexts", "matching answers", "joining",
        "extending matches",
    ]  # fmt: skip
    contexts = [progress for progress in told if progress.step == "reading contexts"]
    assert contexts[-1].rows == contexts[-1].total == len(source.rows)
    assert contexts[-1].text_bytes == sum(len(row.context.encode()) for row in source.rows)


def test_finished_steps_are_kept_and_half_done_ones_made_anew(tmp_path: Path) -> None:
    source = busy_log(13)
    whole = find_matches(source, tmp_path, DUCKDB)
    told: list[str] = []
    assert find_matches(source, tmp_path, DUCKDB, lambda found: told.append(found.step)) == whole
    assert told[0] == "joining", "the scan is not repeated"
    assert set(told[1:]) == {"extending matches"}
    (tmp_path / "joined" / "key").unlink()
    (tmp_path / "joined.half").mkdir()
    assert find_matches(source, tmp_path, DUCKDB) == whole
    find_matches(source, tmp_path, SemiJoinSettings(skew_us=5), lambda made: told.append(made.step))
    assert "reading contexts" in told, "other settings use no old file"


def test_a_folder_that_refuses_writes_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="can't write"):
        find_matches(busy_log(15), tmp_path / "file", DUCKDB)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_detect_semijoin import DUCKDB, busy_log, find_matches
left = int(sys.argv[2])
def die(event, args):
    global left
    if event == "open" and "kill-here" in str(args[0]):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
def report(progress):
    try: open("kill-here")
    except OSError: pass
find_matches(busy_log(14), Path(sys.argv[1]), DUCKDB, report)
"""


@pytest.mark.slow
def test_killed_anywhere_and_begun_again_it_finds_the_same(tmp_path: Path) -> None:
    whole = find_matches(busy_log(14), tmp_path / "whole", DUCKDB)
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "tools"), str(here.parent.parent)]
    folder = tmp_path / "killed"
    for reports in (0, 3, 12, 17, 26):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(folder), str(reports), *paths],
            check=False, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
    assert find_matches(busy_log(14), folder, DUCKDB) == whole


def test_spans_are_right_deep_within_a_long_source(tmp_path: Path) -> None:
    before = "é—漢 " * 9_000
    source = log(
        request(1, 0, f"{before}{SECRET}{before}", "ok"), request(2, 60, filler(3), SECRET)
    )
    (match,) = found(source, tmp_path)
    assert match.source_start == len(before)
    assert shown(source, match) == (SECRET[:-1], SECRET[:-1])

"""Files to the canonical table: bounded, tolerant, resumable, joined."""

import gzip
import json
import random
import resource
import signal
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.errors import ConfigError, RunFolderError
from kvaudit.forensics import finish, framing, parts
from kvaudit.forensics.framing import object_records, text_records
from kvaudit.forensics.load import Ingested, ingest
from kvaudit.forensics.options import IngestOptions, window_of
from kvaudit.forensics.reader import ReadContext
from kvaudit.forensics.source import Progress, blocks, find_files
from kvaudit.forensics.table import SCHEMA

DATA = Path(__file__).parents[1] / "data" / "logs"


def request(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "request_id": f"request-{number:04}", "tenant": f"tenant-{number % 3}",
        "ts_start": f"2026-10-02T09:{number // 60 % 60:02}:{number % 60:02}Z",
        "prompt": f"prompt {number}", "response": f"answer {number}", "status": 200,
        "usage": {"prompt_tokens": 3, "completion_tokens": 2}, **changes,
    }  # fmt: skip


def write_lines(path: Path, items: list[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def run(out: Path, *logs: Path, **options: Any) -> Ingested:
    out.mkdir(exist_ok=True)
    return ingest(
        find_files([str(log) for log in logs]), IngestOptions(**options), out, SimulatedClock()
    )


def test_the_table_has_the_canonical_columns_and_is_sorted_by_tenant_and_time(
    tmp_path: Path,
) -> None:
    log = write_lines(tmp_path / "log.jsonl", [request(n) for n in range(50, 0, -1)])
    found = run(tmp_path / "out", log)
    table = pl.read_parquet(found.table)
    assert dict(table.schema) == {
        name: kind() if isinstance(kind, type) else kind for name, kind in SCHEMA.items()
    }
    assert found.rows == len(table) == 50
    order = list(table.select("tenant_id", "start_time").iter_rows())
    assert order == sorted(order)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "ingest.json",
        "requests.parquet",
    ]


def test_every_kind_of_damage_costs_its_record_and_is_counted_by_reason(tmp_path: Path) -> None:
    whole = [json.dumps(request(n)).encode() for n in range(4)]
    lone = json.dumps(request(4, response="half of a pair: PAIR")).replace("PAIR", "\\ud83d")
    latin = whole[3].replace(b"answer 3", b"answer \xe9")
    log = tmp_path / "log.jsonl"
    big = b'{"request_id": "' + b"x" * (framing.RECORD_BYTES_MAX + 5) + b'"}'
    deep = b'{"request_id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    lines = [whole[0], whole[1][:60], b"not json", whole[2], lone.encode(), latin, big, deep, b"12"]
    log.write_bytes(b"\n".join(lines) + b"\n" + json.dumps(request(9)).encode()[:-20])
    found = run(tmp_path / "out", log)
    assert found.damages == {
        "cut or damaged JSON": 2, "no JSON object": 2, framing.OVERSIZE: 1,
        framing.TOO_DEEP: 1, framing.NOT_UTF8: 1,
    }  # fmt: skip
    table = pl.read_parquet(found.table)
    texts = set(table["output_text"])
    assert texts == {"answer 0", "answer 2", "half of a pair: \ufffd", "answer \ufffd"}


def test_a_truncated_gzip_gives_what_was_decoded_before_the_damage(tmp_path: Path) -> None:
    text = "".join(json.dumps(request(n)) + "\n" for n in range(2000)).encode()
    log = tmp_path / "log.jsonl.gz"
    log.write_bytes(gzip.compress(text)[:-3000])
    found = run(tmp_path / "out", log)
    assert 0 < found.rows < 2000
    assert found.damages["truncated gzip"] == 1


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [gzip.compress, zstd, __import__("bz2").compress,
                                  __import__("lzma").compress])  # fmt: skip
def test_several_members_or_frames_are_all_read_whatever_the_name(
    tmp_path: Path, pack: Any
) -> None:
    halves = ["".join(json.dumps(request(n)) + "\n" for n in numbers).encode()
              for numbers in (range(40), range(40, 90))]  # fmt: skip
    log = tmp_path / "log.txt"
    log.write_bytes(b"".join(map(pack, halves)))
    assert run(tmp_path / "out", log).rows == 90


def test_a_zip_bomb_stops_at_its_ratio(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    packer = zlib.compressobj(9, wbits=31)
    body = [json.dumps(request(1)).encode() + b"\n", *[b"\n" * (1 << 20)] * 200]
    bomb.write_bytes(b"".join(map(packer.compress, body)) + packer.flush())
    progress = Progress()
    size = sum(len(block) for block in blocks(bomb, progress))
    assert progress.stopped is not None
    assert "expands more than" in progress.stopped
    assert size < 80 << 20


def test_a_json_array_and_an_envelope_give_their_items_with_byte_offsets() -> None:
    items = [request(n, prompt="ä" * n) for n in range(5)]
    for text in (json.dumps(items, indent=1, ensure_ascii=False),
                 json.dumps({"success": True, "result": items}, ensure_ascii=False),
                 json.dumps({"records": items}, indent=2, ensure_ascii=False)):  # fmt: skip
        data = text.encode()
        context = ReadContext()
        pieces = [data[i : i + 37] for i in range(0, len(data), 37)]
        records = list(object_records(pieces, context))
        assert [record.data for record in records] == items
        assert not context.damages
        assert all(data[record.offset : record.offset + 1] == b"{" for record in records[1:])


def test_arrays_and_envelopes_one_a_line_are_all_read() -> None:
    items = [request(n) for n in range(6)]
    for lines in ([json.dumps(items[:3]), json.dumps(items[3:])],
                  [json.dumps({"records": items[:3]}), json.dumps({"records": items[3:]})],
                  [json.dumps({"records": items[:3]}, indent=1),
                   json.dumps({"records": items[3:]}, indent=1)]):  # fmt: skip
        context = ReadContext()
        records = list(object_records(["\n".join(lines).encode()], context))
        assert [record.data for record in records] == items
        assert not context.damages


def test_lines_have_their_byte_offsets_and_lose_carriage_returns() -> None:
    data = "eins\r\nzwölf\n\nende".encode()
    records = list(text_records([data[:3], data[3:8], data[8:]], ReadContext()))
    assert [record.line for record in records] == ["eins", "zwölf", "", "ende"]
    assert [record.offset for record in records] == [0, 6, 13, 14]


def test_an_unknown_file_names_its_first_keys_and_the_nearest_formats(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", [{"hidden_params": {}, "model_group": "x", "q": 1}])
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "out", log)
    assert "`hidden_params`" in (caught.value.hint or "")
    assert "litellm-payload" in (caught.value.hint or "")
    assert not list((tmp_path / "out").iterdir())


def test_a_pickle_is_refused_with_the_reason_and_never_loaded(tmp_path: Path) -> None:
    import pickle

    log = tmp_path / "requests.pkl"
    log.write_bytes(pickle.dumps({"requests": [1]}))
    with pytest.raises(ConfigError, match="no record could be read") as caught:
        run(tmp_path / "out", log)
    assert "pickle runs code" in (caught.value.hint or "")


@pytest.mark.parametrize("container", ["csv", "parquet", "duckdb"])
def test_a_table_comes_in_with_its_columns_mapped(tmp_path: Path, container: str) -> None:
    frame = pl.DataFrame({
        "anfrage": ["a-1", "a-2"], "mandant": ["t1", "t2"],
        "frage": ["was ist das?", 'mit "Zitat", Komma\nund Zeile'], "antwort": ["ein Test", "zwei"],
        "zeit": ["2026-10-02T09:00:00Z", "2026-10-02T09:00:01Z"],
    })  # fmt: skip
    log = tmp_path / f"table.{container}"
    if container == "csv":
        frame.write_csv(log)
    elif container == "parquet":
        frame.write_parquet(log)
    else:
        import duckdb

        with duckdb.connect(str(log)) as connection:
            connection.register("frame", frame.to_arrow())
            connection.execute("CREATE TABLE anfragen AS SELECT * FROM frame")
    columns = {"anfrage": "request_id", "mandant": "tenant_id", "frage": "input_text",
               "antwort": "output_text", "zeit": "start_time"}  # fmt: skip
    table = pl.read_parquet(run(tmp_path / "out", log, columns=columns).table)
    assert list(table["request_id"]) == ["a-1", "a-2"]
    assert list(table["input_text"]) == list(frame["frage"])
    assert list(table["tenant_id"]) == ["t1", "t2"]


def test_the_tables_own_parquet_comes_back_in_as_it_was(tmp_path: Path) -> None:
    first = run(tmp_path / "one", DATA / "litellm-standard-logging.jsonl")
    second = run(tmp_path / "two", first.table)
    a, b = pl.read_parquet(first.table), pl.read_parquet(second.table)
    assert a.equals(b)


def test_a_tenant_rule_with_a_regex_wins_over_the_formats_default(tmp_path: Path) -> None:
    found = run(
        tmp_path / "out", DATA / "litellm-standard-logging.jsonl",
        tenant_fields=(r"metadata.user_api_key_team_id~^team-(\w+)$",),
    )  # fmt: skip
    assert set(pl.read_parquet(found.table)["tenant_id"]) <= {
        "brightmoor", "ospreyridge", "quillhaven", "tallowbrook",
    }  # fmt: skip


def test_a_window_leaves_out_what_lies_outside_and_counts_it(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", [request(n) for n in range(60)])
    window = window_of("2026-10-02T09:00:10Z..2026-10-02T09:00:20Z")
    found = run(tmp_path / "out", log, window=window)
    assert (found.rows, found.outside_window) == (10, 50)


def test_tenants_of_one_organisation_are_joined(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", [request(n) for n in range(3)])
    found = run(tmp_path / "out", log, same_tenants=(("tenant-2", "tenant-0"),))
    table = pl.read_parquet(found.table).sort("tenant_id")
    assert list(table["organisation"]) == ["tenant-0", None, "tenant-0"]


def engine_and_gateway(tmp_path: Path, *, ahead_s: float) -> tuple[Path, Path]:
    """An engine log with texts, naive local time and no tenant; a gateway log with the tenant."""
    engine, gateway = [], []
    for n in range(12):
        hour, minute = divmod(n * 7, 60)
        engine.append({
            "request_id": f"chatcmpl-abcdef{n}", "prompt": f"text {n}", "response": f"reply {n}",
            "ts_start": f"2026-10-02T{11 + hour:02}:{minute:02}:{int(ahead_s):02}",
        })  # fmt: skip
        gateway.append({"request_id": f"abcdef{n}", "tenant": f"t{n % 2}", "status": 200,
                        "usage": {"prompt_tokens": 5},
                        "ts_start": f"2026-10-02T{9 + hour:02}:{minute:02}:00Z"})  # fmt: skip
    return (write_lines(tmp_path / "engine.jsonl", engine),
            write_lines(tmp_path / "gateway.jsonl", gateway))  # fmt: skip


def test_an_engine_log_gets_tenant_zone_and_counts_from_its_join_partner(tmp_path: Path) -> None:
    found = run(tmp_path / "out", *engine_and_gateway(tmp_path, ahead_s=2))
    table = pl.read_parquet(found.table)
    primary = table.filter("is_primary").sort("request_id")
    assert len(primary) == 12
    assert len(table) == 24
    assert list(primary["source_file"].unique()) == ["engine.jsonl"]
    assert set(primary["tenant_id"]) == {"t0", "t1"}
    assert set(primary["tenant_id_source"]) == {"gateway.jsonl: tenant"}
    assert set(primary["gen_ai_usage_input_tokens"]) == {5}
    assert set(primary["http_response_status_code"]) == {200}
    assert str(primary["start_time"].min()) == "2026-10-02 09:00:02+00:00"
    assert any("zone +02:00 taken from the clock of `gateway.jsonl`" in note
               for note in found.clocks.notes)  # fmt: skip
    assert found.skew_us == 2_000_000


def test_times_with_a_zone_stay_as_they_are_among_times_without(tmp_path: Path) -> None:
    engine, gateway = engine_and_gateway(tmp_path, ahead_s=0)
    with engine.open("a") as handle:
        zoned = request(900, request_id="zoned-1", ts_start="2026-10-02T11:00:07+02:00")
        handle.write(json.dumps(zoned) + "\n")
        both = request(901, request_id="chatcmpl-abcdefff", ts_start="2026-10-02T11:00:08+02:00")
        handle.write(json.dumps(both) + "\n")
    with gateway.open("a") as handle:
        other = {"request_id": "abcdefff", "tenant": "t1", "status": 200,
                 "ts_start": "2026-10-02T09:00:08Z"}  # fmt: skip
        handle.write(json.dumps(other) + "\n")
    found = run(tmp_path / "out", engine, gateway)
    table = pl.read_parquet(found.table).filter(source_file="engine.jsonl")
    times = {row["request_id"]: str(row["start_time"])[11:19] for row in table.to_dicts()}
    assert times["chatcmpl-abcdef0"] == "09:00:00"
    assert times["zoned-1"] == "09:00:07"
    assert times["chatcmpl-abcdefff"] == "09:00:08"
    assert found.skew_us == 0


def test_a_prompt_and_its_answer_in_two_files_become_one_request(tmp_path: Path) -> None:
    prompts = write_lines(
        tmp_path / "in.jsonl",
        [{"request_id": f"batch-{n}", "tenant": "t", "prompt": f"question {n}"} for n in range(5)],
    )
    answers = write_lines(
        tmp_path / "out.jsonl",
        [{"request_id": f"batch-{n}", "response": f"reply {n}", "usage": {}} for n in range(5)],
    )
    table = pl.read_parquet(run(tmp_path / "out", prompts, answers).table).filter("is_primary")
    assert sorted(table.select("input_text", "output_text").iter_rows()) == [
        (f"question {n}", f"reply {n}") for n in range(5)
    ]
    assert set(table["tenant_id"]) == {"t"}


def test_a_retry_is_a_request_of_its_own_and_a_copied_record_is_not(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", [
        request(1, trace_id="trace-1"), request(1, trace_id="trace-1"),
        request(2, trace_id="trace-1", prompt="prompt 1", response="another answer"),
    ])  # fmt: skip
    table = pl.read_parquet(run(tmp_path / "out", log).table)
    primary = table.filter("is_primary").sort("start_time")
    assert list(primary["output_text"]) == ["answer 1", "another answer"]
    assert list(primary["attempt"]) == [1, 2]


CHILD = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    from kvaudit.clock import SimulatedClock
    from kvaudit.forensics import finish, parts
    from kvaudit.forensics.load import ingest
    from kvaudit.forensics.options import IngestOptions
    from kvaudit.forensics.source import find_files

    out, kill_at, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "resume"
    parts.PART_ROWS_MAX, finish.RUNS_OPEN_MAX = 40, 3
    count = 0
    plain_open, plain_replace = os.fsync, Path.replace

    def step(*_):
        global count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), 9)

    def fsync(handle):
        step(); plain_open(handle); step()

    def replace(self, target):
        step(); made = plain_replace(self, target); step(); return made

    os.fsync, Path.replace = fsync, replace
    ingest(find_files(sys.argv[4:]), IngestOptions(), out, SimulatedClock(), resume=resume)
    print(count)
""")


def child(out: Path, kill_at: int, mode: str, *logs: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(out), str(kill_at), mode, *map(str, logs)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_folder_of_many_small_files_needs_few_parts_and_few_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(40):
        write_lines(logs / f"{number:02}.json", [request(number), request(100 + number)])
    whole = run(tmp_path / "whole", logs)
    assert [file.rows for file in whole.files] == [2] * 40
    monkeypatch.setattr(parts, "PART_ROWS_MAX", 4)  # so that two files are a part
    monkeypatch.setattr(finish, "RUNS_OPEN_MAX", 3)
    made: list[str] = []
    plain_write = parts.write_part
    monkeypatch.setattr(
        parts, "write_part", lambda frame, path: (made.append(path.name), plain_write(frame, path))
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 14, hard))
    try:
        found = run(tmp_path / "parts", logs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert made == [f"{number:06}-whole.parquet" for number in range(0, 40, 2)]
    assert found.table.read_bytes() == whole.table.read_bytes()


@pytest.mark.slow
def test_a_killed_ingest_resumed_gives_the_same_bytes(tmp_path: Path) -> None:
    items: list[Mapping[str, Any]] = [request(n) for n in range(300)]
    log = write_lines(tmp_path / "a.jsonl", items)
    with log.open("a") as handle:
        handle.write('{"cut": \n')
    logs = (log, DATA / "vllm-server.log", DATA / "litellm-standard-logging.jsonl")
    whole = tmp_path / "whole"
    whole.mkdir()
    steps = int(child(whole, -1, "fresh", *logs).stdout)
    expected = (whole / "requests.parquet").read_bytes()
    summary = json.loads((whole / "ingest.json").read_text())
    for kill_at in {1 + steps * share // 10 for share in range(10)} | {steps}:
        out = tmp_path / f"killed-{kill_at}"
        out.mkdir()
        assert child(out, kill_at, "fresh", *logs).returncode == -signal.SIGKILL
        has_journal = (out / "ingest.jsonl").exists() and (out / "ingest.jsonl").read_text()
        assert not (out / "requests.parquet").exists() or kill_at >= steps
        mode = "resume" if has_journal else "fresh"
        if mode == "fresh":
            (out / "ingest.jsonl").unlink(missing_ok=True)
        ended = child(out, -1, mode, *logs)
        assert ended.returncode == 0, ended.stderr
        assert (out / "requests.parquet").read_bytes() == expected
        assert json.loads((out / "ingest.json").read_text())["files"] == summary["files"]


FULL_DISK = textwrap.dedent("""
    import resource, sys
    from pathlib import Path
    from kvaudit.clock import SimulatedClock
    from kvaudit.errors import StorageError
    from kvaudit.forensics import parts as module
    from kvaudit.forensics.load import ingest
    from kvaudit.forensics.options import IngestOptions
    from kvaudit.forensics.source import find_files

    module.PART_ROWS_MAX = 50
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    for limit in map(int, sys.argv[3:]):
        out = Path(sys.argv[1]) / str(limit)
        out.mkdir()
        files, clock = find_files([sys.argv[2]]), SimulatedClock()
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            ingest(files, IngestOptions(), out, clock)
        except StorageError as error:
            place = str(error).split("`")[1]
            print(limit, Path(place).name, error.exit_status, str(error).split(": ")[-1], sep="|")
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert not (out / "requests.parquet").exists()
        assert ingest(files, IngestOptions(), out, clock, resume=True).rows == 600
""")


def wordy(path: Path, rows: int, chars: int) -> Path:
    pick = random.Random(1)
    items = [request(n, request_id=f"request-{n // 2}", response=pick.randbytes(chars).hex())
             for n in range(rows)]  # fmt: skip
    return write_lines(path, items)


@pytest.mark.slow
def test_a_full_disk_stops_the_ingest_at_any_step_and_a_resume_ends_it(tmp_path: Path) -> None:
    log = wordy(tmp_path / "log.jsonl", 600, 400)
    limits = ("100", "20000", "160000", "400000")
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), str(log), *limits],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "100|ingest.jsonl|3|File too large", "20000|000000-000000.parquet|3|File too large",
        "160000|joins.duckdb|3|File too large", "400000|requests.parquet.tmp|3|File too large",
    ]  # fmt: skip


def test_a_scan_on_a_full_disk_ends_with_status_3_and_leaves_nothing_that_looks_whole(
    tmp_path: Path,
) -> None:
    log, out = wordy(tmp_path / "log.jsonl", 200, 400), tmp_path / "out"
    command = "from kvaudit.cli.main import main; main()"
    limited = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000,) * 2); {command}"
    )
    done = subprocess.run(
        [sys.executable, "-c", limited, "scan", str(log), "--out", str(out), "--quiet"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "can't write" in done.stderr
    assert "Traceback" not in done.stderr
    names = {path.name for path in out.rglob("*")}
    assert not names & {"requests.parquet", "report.json", "run.duckdb", "run.json"}


def test_a_resume_with_other_options_is_refused(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", [request(1)])
    out = tmp_path / "out"
    out.mkdir()
    head = {"options": IngestOptions().as_json(), "files": [["log.jsonl", log.stat().st_size]]}
    (out / "ingest.jsonl").write_text(json.dumps({"type": "begin", "version": 1, **head}) + "\n")
    files = find_files([str(log)])
    with pytest.raises(RunFolderError, match="options of the interrupted ingest"):
        ingest(files, IngestOptions(year=2026), out, SimulatedClock(), resume=True)
    assert ingest(files, IngestOptions(), out, SimulatedClock(), resume=True).rows == 1

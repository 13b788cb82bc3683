"""Parts to the final table: patched, sorted out of core, written in row groups by bytes.

The parts become sorted runs; the runs are merged block by block. A row group ends at the row where
its texts pass 64 MiB, whatever part the rows came from, so that the file's bytes depend on the
rows alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kvaudit.forensics.clocks import Clocks
from kvaudit.forensics.disk import disk_errors
from kvaudit.forensics.joining import Joined
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.row import TimeBasis
from kvaudit.forensics.sql_files import sql
from kvaudit.forensics.table import SCHEMA, TEXT_COLUMNS

ROW_GROUP_BYTES = 64 << 20
RUNS_OPEN_MAX = 64
_RUN_GROUP_ROWS = 1_024
_RUN_GROUP_BYTES = 2 << 20
_KEY = "_key"
_GROUP_ROWS = "_group_rows"
_EXTRA = {_KEY: pl.String, _GROUP_ROWS: pl.Int32}

# What a primary takes from the other views of its request where it has nothing itself.
_INPUT_COLUMNS = (
    "gen_ai_system_instructions", "gen_ai_input_messages", "input_text", "context_text",
    "input_gaps", "input_raw_map", "input_digest", "input_chars",
)  # fmt: skip
_OUTPUT_COLUMNS = (
    "gen_ai_output_messages", "output_text", "output_reasoning_text", "output_tool_text",
    "output_gaps", "output_raw_map", "output_digest", "output_chars",
)  # fmt: skip
_FILLED_COLUMNS = (
    "user_id", "api_key_hash", "client_address", "gen_ai_operation_name", "gen_ai_provider_name",
    "endpoint", "gen_ai_request_model", "gen_ai_response_model", "gen_ai_request_stream",
    "service_instance_id", "engine_slot", "cache_salt", "lora_name", "http_response_status_code",
    "error_type", "error_message", "gen_ai_response_finish_reasons",
    "gen_ai_response_time_to_first_chunk", "gen_ai_usage_input_tokens",
    "gen_ai_usage_output_tokens", "gen_ai_usage_cache_read_input_tokens",
    "gen_ai_usage_cache_creation_input_tokens", "gen_ai_usage_reasoning_output_tokens",
    "client_prompt_tokens", "max_tokens", "temperature", "cache_hit_response", "response_headers",
    "gen_ai_response_id", "disaggregation_role", "bootstrap_room", "kv_transfer_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Written:
    """The finished table: rows in it, and rows outside `--window` that were left out."""

    rows: int
    outside_window: int


def write_table(
    parts: Sequence[Path], joined: Joined, options: IngestOptions, scratch: Path, target: Path
) -> Written:
    """Write the final table; it appears under its name only when it is whole.

    Raises:
        StorageError: The disk is full.
    """
    outside = 0
    runs: list[Path] = []
    organisations = organisations_of(options.same_tenants)
    with duckdb.connect(str(joined.database), read_only=True) as connection:
        for number, part in enumerate(parts):
            frame = pl.read_parquet(part)
            patch = _patch_of(connection, part.name)
            patched = _patched(frame, patch, joined.clocks, organisations)
            kept = _in_window(patched, options.window)
            outside += len(patched) - len(kept)
            run = scratch / f"run-{number:06}.parquet"
            _write_run(kept.sort(_KEY), run)
            runs.append(run)
    runs = _few_enough(runs, scratch)
    rows = _write_merged(runs, target)
    for run in runs:
        run.unlink()
    return Written(rows, outside)


def _few_enough(runs: list[Path], scratch: Path) -> list[Path]:
    """Merge runs into longer ones until all that are left may be open at once."""
    level = 0
    while len(runs) > RUNS_OPEN_MAX:
        level += 1
        longer: list[Path] = []
        for first in range(0, len(runs), RUNS_OPEN_MAX):
            some = runs[first : first + RUNS_OPEN_MAX]
            made = scratch / f"run-{level}-{first:06}.parquet"
            _write_longer_run(some, made)
            for run in some:
                run.unlink()
            longer.append(made)
        runs = longer
    return runs


def _write_longer_run(runs: Sequence[Path], path: Path) -> None:
    schema = pl.DataFrame(schema={**SCHEMA, **_EXTRA}).to_arrow().schema
    with (
        disk_errors(path),
        pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer,
    ):
        for frame in _merged(runs):
            table = frame.rechunk().to_arrow().cast(schema)
            writer.write_table(table, row_group_size=_run_group_rows(frame))


def organisations_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return tenant -> organisation for tenants that `--same-tenant` joins: the least name."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        parent.setdefault(name, name)
        while parent[name] != name:
            name = parent[name]
        return name

    for first, second in pairs:
        a, b = root(first), root(second)
        parent[max(a, b)] = min(a, b)
    return {name: root(name) for name in parent}


def _patch_of(connection: duckdb.DuckDBPyConnection, part: str) -> pl.DataFrame:
    found = connection.sql(sql("part_patch"), params={"part": part})
    frame = found.pl()
    assert isinstance(frame, pl.DataFrame), "duckdb gives a frame"
    return frame


_PATCHED = (
    "dedup_group", "is_primary", "attempt", "tenant_id", "tenant_id_source", "organisation",
    "gen_ai_conversation_id",
)  # fmt: skip


def _patched(
    frame: pl.DataFrame, patch: pl.DataFrame, clocks: Clocks, organisations: Mapping[str, str]
) -> pl.DataFrame:
    """Return the rows with the joins' values, corrected times and their sort key."""
    joined = frame.with_columns(dedup_group=pl.col("record_id"), is_primary=pl.lit(True)).join(
        patch, on="record_id", how="left", suffix="_new", maintain_order="left"
    )
    is_new = pl.col("group_rows").is_not_null()
    joined = joined.with_columns(
        pl.when(is_new).then(pl.coalesce(f"{name}_new", name)).otherwise(pl.col(name)).alias(name)
        for name in _PATCHED
    ).with_columns(
        group_start_us=pl.coalesce("group_start_us", pl.col("start_time").dt.epoch("us")),
        group_file=pl.coalesce("group_file", "source_file"),
        group_clock=pl.coalesce("group_clock", "clock_id"),
        group_basis=pl.coalesce("group_basis", "time_basis"),
        group_rows=pl.col("group_rows").fill_null(1).cast(pl.Int32),
    )
    if organisations:
        mapped = pl.col("tenant_id").replace_strict(organisations, default=None)
        joined = joined.with_columns(organisation=pl.coalesce(mapped, "organisation"))
    joined = _timed(joined, clocks)
    return (
        joined.with_columns(_key_expression().alias(_KEY), group_rows=pl.col("group_rows"))
        .rename({"group_rows": _GROUP_ROWS})
        .select([*SCHEMA, *_EXTRA])
    )


_UNSURE = (TimeBasis.NAIVE.value, TimeBasis.RELATIVE.value)


def _timed(frame: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Take zones, years and relative starts off the times of the clocks that need it.

    A log may hold times with a zone among those without: they are right as they stand.
    """
    if not clocks.ahead_us:
        return frame
    table = pl.DataFrame(
        [(name, clock, ahead) for (name, clock), ahead in clocks.ahead_us.items()],
        schema={"source_file": pl.String, "clock_id": pl.String, "_ahead": pl.Int64},
        orient="row",
    )
    group = table.rename({"source_file": "group_file", "clock_id": "group_clock",
                          "_ahead": "_group_ahead"})  # fmt: skip
    frame = frame.join(table, on=["source_file", "clock_id"], how="left", maintain_order="left")
    frame = frame.join(group, on=["group_file", "group_clock"], how="left", maintain_order="left")
    ahead_us = pl.when(pl.col("time_basis").is_in(_UNSURE)).then("_ahead").fill_null(0)
    group_ahead_us = pl.when(pl.col("group_basis").is_in(_UNSURE)).then("_group_ahead").fill_null(0)
    ahead = pl.duration(microseconds=ahead_us, time_unit="us")
    return frame.with_columns(
        start_time=pl.col("start_time") - ahead,
        end_time=pl.col("end_time") - ahead,
        group_start_us=pl.col("group_start_us") - group_ahead_us,
    )


_KEY_OFFSET = 10**17  # keeps times before 1970 in order as text


def _key_expression() -> pl.Expr:
    """Tenant, conversation, time of the request, the request, its primary first, the row."""
    start = (pl.col("group_start_us").fill_null(_KEY_OFFSET - 1) + _KEY_OFFSET).cast(pl.String)
    return pl.concat_str(
        pl.col("tenant_id").fill_null(""),
        pl.col("gen_ai_conversation_id").fill_null(""),
        start.str.zfill(18),
        pl.col("dedup_group"),
        pl.when("is_primary").then(pl.lit("0")).otherwise(pl.lit("1")),
        pl.col("record_id"),
        separator="\x01",
    )


def _in_window(frame: pl.DataFrame, window: tuple[int, int] | None) -> pl.DataFrame:
    if window is None:
        return frame
    low, high = (max(-(2**60), min(2**60, edge)) for edge in window)
    start = pl.col("start_time").dt.epoch("us")
    return frame.filter(start.is_null() | ((start >= low) & (start < high)))


def _write_run(frame: pl.DataFrame, path: Path) -> None:
    rows = _run_group_rows(frame)
    with disk_errors(path):
        frame.write_parquet(path, compression="zstd", compression_level=1, row_group_size=rows)


def _run_group_rows(frame: pl.DataFrame) -> int:
    """Return how many rows of a run are read back at once: about 2 MiB of them."""
    fitting = _RUN_GROUP_BYTES * len(frame) // max(1, int(frame.estimated_size()))
    return max(16, min(_RUN_GROUP_ROWS, fitting))


class _Run:
    """A sorted run, read row group by row group."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetFile(path)
        self._next = 0
        self.held = pl.DataFrame()
        self.refill()

    @property
    def is_last(self) -> bool:
        """Whether nothing is left beyond what is held."""
        return self._next >= int(self._file.num_row_groups)

    @property
    def last_key(self) -> str:
        """Key of the last row held."""
        return str(self.held[_KEY][-1])

    def refill(self) -> None:
        """Hold the next row group, if nothing is held."""
        while not len(self.held) and not self.is_last:
            frame = pl.from_arrow(self._file.read_row_group(self._next))
            assert isinstance(frame, pl.DataFrame), "a table becomes a frame"
            self.held = frame
            self._next += 1

    def take(self, bound: str | None) -> pl.DataFrame:
        """Hand out the rows up to and with the bound; None = all."""
        if bound is None:
            taken, self.held = self.held, self.held.clear()
        else:
            count = int(self.held[_KEY].search_sorted(bound, side="right"))
            if not count:
                return self.held.clear()
            taken, self.held = self.held.head(count), self.held.slice(count)
        self.refill()
        return taken


def _merged(runs: Sequence[Path]) -> Iterator[pl.DataFrame]:
    """Yield the rows of all runs in order, in frames of a few megabytes."""
    opened = [run for run in map(_Run, runs) if len(run.held)]
    while any(len(run.held) for run in opened):
        bound = min(
            (run.last_key for run in opened if len(run.held) and not run.is_last), default=None
        )
        taken = [run.take(bound) for run in opened if len(run.held)]
        yield pl.concat([found for found in taken if len(found)]).sort(_KEY)


def _whole_groups(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the frames so that no request is cut between two of them."""
    held: pl.DataFrame | None = None
    for frame in frames:
        held = frame if held is None else pl.concat([held, frame])
        groups = held["dedup_group"]
        whole = (groups != groups[-1]).arg_true()
        tail = len(held) - (int(whole[-1]) + 1 if len(whole) else 0)
        if tail < len(held):
            yield held.head(len(held) - tail)
            held = held.tail(tail)
    if held is not None and len(held):
        yield held


def _filled(frame: pl.DataFrame) -> pl.DataFrame:
    """Give every primary what only another view of its request knows."""
    if frame.filter(pl.col(_GROUP_ROWS) > 1).is_empty():
        return frame
    single = frame.filter(pl.col(_GROUP_ROWS) == 1)
    several = frame.filter(pl.col(_GROUP_ROWS) > 1)
    for state, columns in (
        ("input_content_state", _INPUT_COLUMNS), ("output_content_state", _OUTPUT_COLUMNS),
    ):  # fmt: skip
        is_empty = pl.col("is_primary") & (pl.col(state) == "absent")
        is_donor = pl.col(state) != "absent"
        several = several.with_columns(
            pl.when(is_empty)
            .then(pl.coalesce(pl.col(name).filter(is_donor).first().over("dedup_group"), name))
            .otherwise(pl.col(name))
            .alias(name)
            for name in (*columns, state)
        )
    several = several.with_columns(
        pl.when("is_primary")
        .then(pl.coalesce(name, pl.col(name).drop_nulls().first().over("dedup_group")))
        .otherwise(pl.col(name))
        .alias(name)
        for name in _FILLED_COLUMNS
    )
    return pl.concat([single, several]).sort(_KEY)


def _write_merged(runs: Sequence[Path], target: Path) -> int:
    temporary = target.with_suffix(".tmp")
    schema = pl.DataFrame(schema=SCHEMA).to_arrow().schema
    rows = 0
    with disk_errors(target), _gone_on_failure(temporary):
        with pq.ParquetWriter(
            temporary,
            schema,
            compression="zstd",
            compression_level=3,
            use_dictionary=[name for name in SCHEMA if name not in TEXT_COLUMNS],
            write_statistics=[name for name in SCHEMA if name not in TEXT_COLUMNS],
        ) as writer:
            for frame in _by_bytes(map(_filled, _whole_groups(_merged(runs)))):
                writer.write_table(_arrow(frame, schema), row_group_size=len(frame))
                rows += len(frame)
        temporary.replace(target)
    return rows


@contextmanager
def _gone_on_failure(path: Path) -> Iterator[None]:
    """Leave no half file behind."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    return frame.select(list(SCHEMA)).rechunk().to_arrow().cast(schema)


def _by_bytes(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Cut the stream of rows at the row where a group's texts pass the limit."""
    held: list[pl.DataFrame] = []
    size = 0
    for frame in frames:
        sizes = (
            frame.select(
                pl.sum_horizontal(
                    pl.col(name).str.len_bytes().fill_null(0) for name in TEXT_COLUMNS
                )
                + _ROW_BYTES
            )
            .to_series()
            .to_list()
        )
        start = 0
        for index, row_bytes in enumerate(sizes):
            size += row_bytes
            if size >= ROW_GROUP_BYTES:
                held.append(frame.slice(start, index + 1 - start))
                yield pl.concat(held)
                held, size, start = [], 0, index + 1
        if start < len(frame):
            held.append(frame.slice(start))
    if held:
        yield pl.concat(held)


_ROW_BYTES = 512

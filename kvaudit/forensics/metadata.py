"""The rules that need no text: what a log's own numbers contradict. Makes Evidence, judges nothing.

Every detail that an Evidence carries is a number or one of our own words. What explains an
observation away stands in `details["explained_by"]`; such evidence never passes a threshold.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from kvaudit.findings import Evidence, Json, Side, Source
from kvaudit.forensics.capacity import Capacity, Refusal, estimated_capacities
from kvaudit.forensics.fields import mapping_of, parse_json, text_of
from kvaudit.forensics.sql_files import kept_answer, sql
from kvaudit.forensics.timing import (
    EARLY_SHARE,
    FULL_READ_SHARE,
    UNCACHED_TOKENS_MIN,
    UNTOLD_EARLY_MIN,
    UNTOLD_EARLY_SHARE,
    Bin,
    fits_of,
)

EVIDENCE_MAX = 20_000  # per rule; a rule that fires more often than that describes the log
MEMORY = "1GB"
PROMPT_COUNTED_MIN = 200
TOKENS_TINY = 5
RATIO_MIN, RATIO_MAX = 0.5, 3.0
OVERHEAD_TOKENS = 400
CHARS_PER_TOKEN_MAX = 14
CACHED_TOKENS_MIN = 64
_CHARS_PER_CACHED_TOKEN = 3
_TEMPLATE_OWNERS = 3
_ROOM_US_MAX = 600_000_000
_BEGINNING_US = -(2**62)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """What one rule found.

    Attributes:
        rule_id: The rule.
        evidence: At most `EVIDENCE_MAX`, in order of time.
        fired: How often it fired, beyond that too.
        examined: Requests to which it could be applied.
        reason: Why it could not be applied at all; "" if it could.
        note: What to know of how it was applied.
    """

    rule_id: str
    evidence: tuple[Evidence, ...] = ()
    fired: int = 0
    examined: int = 0
    reason: str = ""
    note: str = ""


Row = dict[str, Any]


class MetadataRules:
    """The metadata rules over one canonical table.

    Args:
        table: The Parquet file.
        scratch: Folder for what DuckDB spills.
        pool_tokens: The smaller of the pools that a prompt must fit into; None = estimated.
        context_tokens: The advertised context; the smaller of both limits counts.
    """

    def __init__(
        self,
        table: Path,
        scratch: Path,
        *,
        pool_tokens: int | None = None,
        context_tokens: int | None = None,
    ) -> None:
        limits = [limit for limit in (pool_tokens, context_tokens) if limit is not None]
        self._limit = min(limits, default=None)
        self._connection = duckdb.connect(":memory:")
        run = self._connection.execute
        run("SET memory_limit = ?", [MEMORY])
        run("SET threads = 2")
        run("SET temp_directory = ?", [str(scratch)])
        self._connection.read_parquet(str(table)).create_view("scanned")
        run(kept_answer("served_rows", "served"))
        run(kept_answer("repeats", "repeats"))
        run(sql("served_view"))
        self._capacities = self._load_capacities()
        self._load_fits()

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()

    def outcomes(self) -> list[RuleOutcome]:
        """Apply every metadata rule."""
        return [
            self._token_mismatches(), self._over_capacity(), self._early_first_tokens(),
            self._cached_prefixes(), self._leg_mismatches(), self._short_transfers(),
            self._ids_alive_twice(), self._cache_headers(), self._foreign_items(),
        ]  # fmt: skip

    def counts(self) -> dict[str, int]:
        """Return how many requests there are of each kind."""
        row = self._connection.execute(sql("scan_counts")).fetchone()
        names = [held[0] for held in self._connection.description or ()]
        assert row is not None, "an aggregate has one row"
        return dict(zip(names, map(int, row), strict=True))

    def coverage_rows(self) -> list[tuple[str, str, int]]:
        """Return (kind, reason, requests): examined, missing or apart."""
        rows = self._connection.execute(sql("coverage")).fetchall()
        return [(str(kind), str(reason), int(count)) for kind, reason, count in rows]

    @property
    def capacity_note(self) -> str:
        """Which capacities were used, in the user's words."""
        if self._limit is not None:
            return f"capacity {self._limit:,} tokens, as given"
        if not self._capacities:
            return "no capacity is known: no flag gives one and no refusal names one"
        parts = [
            f"{held.tokens:,} tokens on `{held.model or '?'}` {held.replica or ''}".strip()
            for held in self._capacities[:4]
        ]
        more = f" and {len(self._capacities) - 4} more" if len(self._capacities) > 4 else ""
        return f"capacity {', '.join(parts)}{more}: {self._capacities[0].source}"

    def _rows(self, question: str, **values: Any) -> Iterator[Row]:
        cursor = self._connection.execute(sql(question), values)
        names = [held[0] for held in cursor.description or ()]
        while rows := cursor.fetchmany(5_000):
            for row in rows:
                yield dict(zip(names, row, strict=True))

    def _load_capacities(self) -> list[Capacity]:
        if self._limit is not None:
            pairs = self._connection.execute(sql("served_pairs")).fetchall()
            made = [Capacity(m, r, _BEGINNING_US, self._limit, "given") for m, r in pairs]
        else:
            made = estimated_capacities(
                Refusal(**row) for row in self._rows("refusals")
            )  # fmt: skip
        schema = {"model": pl.String, "replica": pl.String, "from_us": pl.Int64,
                  "tokens": pl.Int64, "source": pl.String}  # fmt: skip
        self._keep("capacities", pl.DataFrame(made, schema=schema, orient="row"))
        return made

    def _load_fits(self) -> None:
        bins = [Bin(*row) for row in self._connection.execute(sql("timing_bins")).fetchall()]
        fits = [
            (fit.model, fit.replica, fit.base_s, fit.s_per_token, fit.requests, fit.source)
            for fit in fits_of(bins)
        ]
        schema = {"model": pl.String, "replica": pl.String, "base_s": pl.Float64,
                  "s_per_token": pl.Float64, "requests": pl.Int64, "source": pl.String}  # fmt: skip
        self._has_fits = bool(fits)
        self._keep("fits", pl.DataFrame(fits, schema=schema, orient="row"))

    def _keep(self, name: str, frame: pl.DataFrame) -> None:
        self._connection.register(f"{name}_frame", frame.to_arrow())
        self._connection.execute(sql("keep_frame").replace("$name", name))
        self._connection.unregister(f"{name}_frame")

    def _examined(self, column: str) -> int:
        """Return how many answered requests have a value in the column."""
        row = self._connection.execute(sql("examined").replace("$column", column)).fetchone()
        return int(row[0]) if row is not None else 0

    def _outcome(
        self, rule_id: str, made: Sequence[Evidence], *, examined: int, reason: str, note: str = ""
    ) -> RuleOutcome:
        return RuleOutcome(
            rule_id=rule_id,
            evidence=tuple(made[:EVIDENCE_MAX]),
            fired=len(made),
            examined=examined,
            reason="" if examined or made else reason,
            note=note,
        )

    def _token_mismatches(self) -> RuleOutcome:
        made = [
            _evidence("KVA301", row, score=_ratio(row["counted"], row["reported"]), details={
                "prompt_tokens": row["reported"], "client_prompt_tokens": row["counted"],
                "prompt_characters": row["input_chars"], "usual_ratio": row["usual_ratio"],
                "is_tiny": row["reported"] <= TOKENS_TINY,
                "explained_by": "server truncates: one reported length for several prompts"
                if row["is_constant"] else None,
            })
            for row in self._rows(
                "token_mismatches", counted_min=PROMPT_COUNTED_MIN, tokens_tiny=TOKENS_TINY,
                ratio_min=RATIO_MIN, ratio_max=RATIO_MAX, overhead_tokens=OVERHEAD_TOKENS,
                chars_per_token=CHARS_PER_TOKEN_MAX, slack_tokens=50,
            )
        ]  # fmt: skip
        return self._outcome(
            "KVA301", made, examined=self._examined("reported"),
            reason="no answer reports a prompt length",
        )  # fmt: skip

    def _over_capacity(self) -> RuleOutcome:
        made = []
        in_full = 0
        for row in self._rows("over_capacity", share=FULL_READ_SHARE):
            explained = None
            if row["shows_cut"]:
                explained = "server truncates: usage shows the cut"
            elif row["read_in_full"]:
                in_full += 1
                explained = (
                    "its first token took as long as reading the prompt in full takes, so"
                    " this server holds more"
                )
            made.append(
                _evidence("KVA302", row, score=_ratio(row["sent"], row["capacity"]), details={
                    "prompt_tokens": row["sent"], "capacity_tokens": row["capacity"],
                    "capacity_source": row["capacity_source"], "ttft_s": row["ttft_s"],
                    "expected_ttft_s": row["expected_s"], "explained_by": explained,
                })
            )  # fmt: skip
        examined = self._examined("sent") if self._capacities else 0
        note = self.capacity_note
        if in_full:
            note += (
                f"; {in_full:,} answers over it took as long as a full read: their servers hold"
                " more, or read all and keep less, which time can't tell apart"
            )
        return self._outcome(
            "KVA302", made, examined=examined, note=note,
            reason=self.capacity_note if not self._capacities else "no prompt length is logged",
        )  # fmt: skip

    def _early_first_tokens(self) -> RuleOutcome:
        made = [
            _evidence("KVA303", row, score=_ratio(row["expected_s"], row["ttft_s"]), details={
                "ttft_s": row["ttft_s"], "expected_ttft_s": row["expected_s"],
                "uncached_tokens": row["uncached"], "fit": row["fit_source"],
                "fit_requests": row["fit_requests"],
                "explained_by": "the log tells no cached tokens, and so many long prompts come"
                " early that a prefix cache explains it" if row["may_be_cached"] else None,
            })
            for row in self._rows(
                "early_first_tokens", tokens_min=UNCACHED_TOKENS_MIN, share=EARLY_SHARE,
                untold_min=UNTOLD_EARLY_MIN, untold_share=UNTOLD_EARLY_SHARE,
            )
        ]  # fmt: skip
        return self._outcome(
            "KVA303", made, examined=self._examined("ttft_s") if self._has_fits else 0,
            reason="too few answers with a first-token time and a prompt length to learn from",
        )  # fmt: skip

    def _cached_prefixes(self) -> RuleOutcome:
        made = []
        for row in self._rows(
            "cached_prefixes", cached_min=CACHED_TOKENS_MIN,
            chars_per_token=_CHARS_PER_CACHED_TOKEN, template_owners=_TEMPLATE_OWNERS,
        ):  # fmt: skip
            known = row["sent_by_another"]
            source = Source(request_id=row["source_request_id"], tenant=row["source_tenant"],
                            side=Side.PROMPT) if known else None  # fmt: skip
            explained = None if known else "nobody in this log sent the prefix before it"
            made.append(
                _evidence("KVA304", row, score=float(row["cached"]), source=source, details={
                    "cached_tokens": row["cached"], "prefix_characters": row["chars"],
                    "explained_by": explained,
                })
            )  # fmt: skip
        return self._outcome(
            "KVA304", made, examined=self._examined("cached"),
            reason="no answer reports cached tokens",
        )  # fmt: skip

    def _leg_mismatches(self) -> RuleOutcome:
        made = [
            _evidence("KVA305", row, score=_ratio(row["decode_length"], row["prefill_length"]),
                      details={
                "decode_prompt_tokens": row["decode_length"],
                "prefill_prompt_tokens": row["prefill_length"],
                "prefill_request_id": row["prefill_request_id"], "explained_by": None,
            })
            for row in self._rows("leg_mismatches", room_us_max=_ROOM_US_MAX)
        ]  # fmt: skip
        return self._outcome(
            "KVA305", made, examined=self._examined("room"),
            reason="no record names the pairing of a prefill and a decode leg",
        )  # fmt: skip

    def _short_transfers(self) -> RuleOutcome:
        made = [
            _evidence("KVA306", row, score=_ratio(row["tokens"] * row["bytes_per_token"],
                                                  row["bytes"]), details={
                "transferred_bytes": row["bytes"], "prompt_tokens": row["tokens"],
                "bytes_per_token": row["bytes_per_token"],
                "learned_from_requests": row["rate_requests"], "explained_by": None,
            })
            for row in self._rows("transfers", rate_tokens_min=512, rate_requests_min=8, share=0.9,
                                  slack_tokens=256)
        ]  # fmt: skip
        return self._outcome(
            "KVA306", made, examined=self._examined("transfer_bytes"),
            reason="no record tells the bytes transferred",
        )  # fmt: skip

    def _ids_alive_twice(self) -> RuleOutcome:
        made = [
            _evidence("KVA501", row, score=1.0, details={
                "other_record": row["other_record_id"], "other_tenant": row["other_tenant"],
                "explained_by": None,
            })
            for row in self._rows("shared_ids_alive")
        ]  # fmt: skip
        return self._outcome(
            "KVA501", made, examined=self._examined("input_digest"),
            reason="no prompt is logged, so bodies can't be told apart",
        )  # fmt: skip

    def _cache_headers(self) -> RuleOutcome:
        made = []
        for row in self._rows("cache_headers"):
            headers = mapping_of(parse_json(row["response_headers"]))
            shown = {name: value for name, value in headers.items() if _is_cache_hit(name, value)}
            if shown:
                names: list[Json] = [*sorted(shown)]
                details: Mapping[str, Json] = {"headers": names, "explained_by": None}
                made.append(_evidence("KVA502", row, score=1.0, details=details))
        return self._outcome(
            "KVA502", made, examined=self._examined("response_headers"),
            reason="no response header is logged",
        )  # fmt: skip

    def _foreign_items(self) -> RuleOutcome:
        made = []
        examined = 0
        for row in self._rows("foreign_items"):
            examined += 1
            for item in parse_json(row["retrieved_items"]) or []:
                owner = text_of(mapping_of(item).get("owner"))
                if owner is not None and owner not in (row["owner"], row["tenant"]):
                    text = text_of(mapping_of(item).get("text")) or ""
                    made.append(
                        _evidence("KVA503", row, score=1.0, details={
                            "item_owner": owner, "explained_by": None,
                            "text_in_answer": _shares_run(text, row["output_text"] or ""),
                        })
                    )  # fmt: skip
        return self._outcome(
            "KVA503", made, examined=examined, reason="no retrieved item names its owner"
        )


_HIT_NAMES = ("x-cache", "x-cache-status", "cf-cache-status", "cdn-cache", "x-proxy-cache",
              "cf-aig-cache-status", "helicone-cache", "x-served-by")  # fmt: skip


def _is_cache_hit(name: str, value: object) -> bool:
    """Whether a header says that a shared cache answered."""
    text = str(value).lower()
    if name == "age":
        return text.strip().isdecimal() and int(text) > 0
    if name in ("x-cache-hits", "x-varnish"):
        return any(part.strip("0") for part in text.replace(",", " ").split()) and text != "0"
    return name in _HIT_NAMES and "hit" in text


_RUN_CHARS = 24


def _shares_run(item: str, answer: str) -> bool:
    """Whether a run of the item's text stands in the answer."""
    return any(
        item[start : start + _RUN_CHARS] in answer
        for start in range(0, max(0, len(item) - _RUN_CHARS) + 1, _RUN_CHARS // 3)
        if len(item) >= _RUN_CHARS
    )


def _ratio(large: float | None, small: float | None) -> float:
    """Return how many times the one is the other; at most 1e9, so that a zero stays a number."""
    if not large:
        return 0.0
    return min(1e9, float(large) / float(small)) if small else 1e9


def _evidence(
    rule_id: str,
    row: Row,
    *,
    score: float,
    details: Mapping[str, Json],
    source: Source | None = None,
) -> Evidence:
    kept = {name: value for name, value in details.items() if value is not None}
    return Evidence(
        rule_id=rule_id,
        sink_request_id=str(row["request_id"]),
        sink_tenant=str(row["tenant"] or ""),
        source=source,
        score=score,
        details={**kept, "record_id": row["record_id"], "start_us": row["start_us"]},
    )

"""The rules that need no text: each with a case that must fire and look-alikes that must not."""

import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvaudit.clock import SimulatedClock
from kvaudit.forensics.capacity import Refusal, estimated_capacities, stated_limit
from kvaudit.forensics.load import ingest
from kvaudit.forensics.metadata import MetadataRules, RuleOutcome
from kvaudit.forensics.options import IngestOptions
from kvaudit.forensics.source import find_files
from kvaudit.forensics.timing import Bin, fits_of

BENCH = Path(__file__).parents[1] / "bench" / "incident_log.py"


def incident_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("incident_log", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcomes(
    tmp_path: Path, records: Iterable[Mapping[str, Any]], **limits: int
) -> dict[str, RuleOutcome]:
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    options = IngestOptions(columns={"start": "start_time", "end": "end_time"})
    table = ingest(find_files([str(log)]), options, out, SimulatedClock()).table
    rules = MetadataRules(table, out, **limits)
    try:
        return {outcome.rule_id: outcome for outcome in rules.outcomes()}
    finally:
        rules.close()


def fired(outcome: RuleOutcome) -> set[str]:
    return {
        item.sink_request_id for item in outcome.evidence if not item.details.get("explained_by")
    }


def explained(outcome: RuleOutcome) -> dict[str, Any]:
    return {
        item.sink_request_id: item.details["explained_by"]
        for item in outcome.evidence
        if item.details.get("explained_by")
    }


def request(name: str, **changes: Any) -> dict[str, Any]:
    return {"request_id": name, "tenant": "t1", "model": "m", "status": 200, "start": 1_790_000_000,
            "finish_reason": "stop", **changes}  # fmt: skip


def test_the_incident_shows_in_metadata_alone_and_nothing_else_does(tmp_path: Path) -> None:
    module = incident_module()
    log = module.IncidentLog(7, rows=7_000, right=600, refused=60, response_cache=60, truncated=40)
    records = list(log.records())
    given = outcomes(tmp_path, records, pool_tokens=module.POOL_TOKENS)
    assert len(log.planted_ids) == 155
    assert fired(given["KVA302"]) == log.planted_ids
    assert fired(given["KVA303"]) == log.planted_ids
    assert not fired(given["KVA301"])
    words = set(explained(given["KVA302"]).values())
    assert any("server truncates" in word for word in words)
    assert any("this server holds more" in word for word in words)


def test_without_the_pools_size_the_first_token_times_alone_tell_the_incident(
    tmp_path: Path,
) -> None:
    module = incident_module()
    log = module.IncidentLog(8, rows=7_000, right=600, refused=60, response_cache=60, truncated=40)
    alone = outcomes(tmp_path, log.records())
    assert fired(alone["KVA303"]) == log.planted_ids
    assert "refusals for length" in alone["KVA302"].note


def test_a_reported_length_of_one_for_a_long_prompt_is_told_from_a_cut_one(tmp_path: Path) -> None:
    records = [request(f"right-{n}", client_prompt_tokens=1000 + n, prompt_tokens=1010 + n)
               for n in range(20)]  # fmt: skip
    records += [request("tiny", client_prompt_tokens=700_000, prompt_tokens=1)]
    records += [request("half", client_prompt_tokens=2_000, prompt_tokens=700)]
    records += [request("twice", client_prompt_tokens=300, prompt_tokens=4_000)]
    records += [request(f"cut-{n}", client_prompt_tokens=20_000 + n, prompt_tokens=8_192)
                for n in range(4)]  # fmt: skip
    records += [request("text", prompt="word " * 4_000, prompt_tokens=3)]
    records += [request("text-right", prompt="word " * 4_000, prompt_tokens=4_010)]
    found = outcomes(tmp_path, records)["KVA301"]
    assert fired(found) == {"tiny", "half", "twice", "text"}
    assert set(explained(found)) == {f"cut-{n}" for n in range(4)}


def test_a_capacity_is_read_from_what_refusals_say_and_counts_from_then_on(tmp_path: Path) -> None:
    def message(limit: int) -> str:
        return f"Input length (9,000 tokens) exceeds the maximum allowed length ({limit} tokens)."

    records = [
        request("early", start=1_790_000_000, prompt_tokens=5_000),
        request("no-1", start=1_790_000_100, status=400, error_message=message(4_096)),
        request("over", start=1_790_000_200, prompt_tokens=5_000),
        request("fits", start=1_790_000_300, prompt_tokens=4_000),
        request("no-2", start=1_790_000_400, status=400, error_message=message(8_192)),
        request("now-fits", start=1_790_000_500, prompt_tokens=5_000),
    ]
    found = outcomes(tmp_path, records)["KVA302"]
    assert fired(found) == {"early", "over"}
    assert "named in the log's refusals" in found.note


def test_limits_are_found_in_the_usual_error_texts_and_nowhere_else() -> None:
    told = {
        "This model's maximum context length is 32768 tokens. However, you requested 40000": 32768,
        "Input length (700000 tokens) exceeds the maximum allowed length (681274 tokens).": 681274,
        "prompt is too long: 210000 tokens > 200000 maximum": 200000,
        "the request exceeds the available context size": None,
        "Rate limit reached; retry after 12 seconds": None,
    }
    assert {text: stated_limit(text) for text in told} == told
    other = [Refusal("m", "", n, 9_000 + n, "invalid_request_error", "bad JSON") for n in range(9)]
    assert estimated_capacities(other) == []


def test_a_response_cache_and_a_prefix_cache_explain_early_first_tokens(tmp_path: Path) -> None:
    records = [request(f"r{n}", prompt_tokens=n * 500, ttft_ms=40 + n * 12) for n in range(1, 300)]
    records += [request("early", prompt_tokens=120_000, ttft_ms=60)]
    records += [request("cached", prompt_tokens=120_000, cached_tokens=119_800, ttft_ms=60)]
    records += [request("replayed", prompt_tokens=120_000, ttft_ms=2, cache_hit=True)]
    records += [request("slow", prompt_tokens=120_000, ttft_ms=90_000)]
    records += [request("short", prompt_tokens=900, ttft_ms=1)]
    assert fired(outcomes(tmp_path, records)["KVA303"]) == {"early"}


def test_too_few_answers_teach_no_first_token_time() -> None:
    few = [Bin("m", "r", n, 4, 0.1 * n, 1000.0 * n) for n in range(1, 9)]
    assert fits_of(few) == []
    enough = [Bin("m", "r", n, 40, 0.05 + 1e-5 * 2**n, 2.0**n) for n in range(8, 18)]
    fit = fits_of(enough)[0]
    assert fit.s_per_token == pytest.approx(1e-5, rel=0.1)


def test_a_replica_whose_every_long_answer_is_wrong_still_shows_its_rate() -> None:
    bins = [Bin("m", "r", n, 40, 0.05 + 1e-5 * 2**n, 2.0**n) for n in range(8, 18)]
    bins += [Bin("m", "r", 20, 200, 0.1, 1e6)]
    assert fits_of(bins)[0].s_per_token == pytest.approx(1e-5, rel=0.1)


def leg(room: str, kind: str, tokens: int, **changes: Any) -> dict[str, Any]:
    return request(f"{room}-{kind}", bootstrap_room=room, leg=kind, prompt_tokens=tokens,
                   completion_tokens=1 if kind == "prefill" else 90, **changes)  # fmt: skip


def test_legs_that_disagree_and_transfers_that_fall_short_are_found(tmp_path: Path) -> None:
    records = []
    for n in range(12):
        tokens = 4_000 + 100 * n
        records += [leg(f"room-{n}", "prefill", tokens, kv_transfer_bytes=tokens * 70_000),
                    leg(f"room-{n}", "decode", tokens)]  # fmt: skip
    records += [
        leg("bad", "prefill", 1, kv_transfer_bytes=3_400_000),
        leg("bad", "decode", 700_000),
    ]
    records += [
        leg("late", "prefill", 5_000, kv_transfer_bytes=5_000 * 70_000, start=1_790_100_000),
        leg("late", "decode", 6_000, start=1_790_200_000),
    ]  # another pair, a day later
    found = outcomes(tmp_path, records)
    assert fired(found["KVA305"]) == {"bad-decode"}
    assert "bad-decode" in fired(found["KVA306"])
    assert not {f"room-{n}-decode" for n in range(12)} & fired(found["KVA306"])


def test_a_cache_hit_on_another_tenants_prefix_names_who_sent_it(tmp_path: Path) -> None:
    secret = "The merger of Brennick Ferries with the harbour board closes on Friday. " * 20
    template = "You are the careful assistant of the house, answer briefly and in prose. " * 20
    records = [request("first", tenant="t1", prompt=secret, cached_tokens=0, start=1_790_000_000)]
    records += [request("hit", tenant="t2", prompt=secret + "?", cached_tokens=320,
                        start=1_790_000_100)]  # fmt: skip
    records += [request("again", tenant="t2", prompt=secret + "!", cached_tokens=320,
                        start=1_790_000_200)]  # fmt: skip
    records += [request(f"shared-{n}", tenant=f"s{n}", prompt=template + str(n), cached_tokens=320,
                        start=1_790_000_300 + n) for n in range(4)]  # fmt: skip
    records += [request("unknown", tenant="t9", prompt="Once upon a time in the north. " * 40,
                        cached_tokens=320, start=1_790_000_400)]  # fmt: skip
    found = outcomes(tmp_path, records)["KVA304"]
    assert fired(found) == {"hit"}
    hit = next(item for item in found.evidence if item.sink_request_id == "hit")
    assert hit.source is not None
    assert (hit.source.request_id, hit.source.tenant) == ("first", "t1")
    assert set(explained(found)) == {"unknown"}


def test_one_id_alive_for_two_bodies_is_told_from_a_reused_and_a_retried_one(
    tmp_path: Path,
) -> None:
    records = [
        request("twice", prompt="one body", response="a", start=1_790_000_000, end=1_790_000_010),
        request("twice", tenant="t2", prompt="another", response="b", start=1_790_000_005,
                end=1_790_000_020),
        request("reused", prompt="one body", response="c", start=1_790_000_000, end=1_790_000_001),
        request("reused", prompt="another", response="d", start=1_790_000_500, end=1_790_000_501),
        request("retried", prompt="same", response="e", start=1_790_000_000, end=1_790_000_009),
        request("retried", prompt="same", response="f", start=1_790_000_005, end=1_790_000_012),
    ]  # fmt: skip
    assert fired(outcomes(tmp_path, records)["KVA501"]) == {"twice"}


def test_headers_of_a_shared_cache_are_told_from_harmless_ones(tmp_path: Path) -> None:
    def headers(name: str, **found: str) -> dict[str, Any]:
        return request(name, response="x", response_headers={
            key.replace("_", "-"): value for key, value in found.items()
        })  # fmt: skip

    records = [
        headers("age", age="31"), headers("hit", x_cache="HIT from edge"), headers("zero", age="0"),
        headers("miss", cf_cache_status="MISS"), headers("plain", content_type="text/plain"),
        headers("dynamic", cf_cache_status="DYNAMIC"),
    ]  # fmt: skip
    assert fired(outcomes(tmp_path, records)["KVA502"]) == {"age", "hit"}


def test_a_retrieved_item_of_another_owner_is_told_from_ones_own(tmp_path: Path) -> None:
    text = "The settlement stands at 418,250 crowns payable in three parts by Lententide."
    records = [
        request("leak", org="o1", response=f"As the file says: {text}",
                retrieved=[{"owner_org": "o2", "text": text}]),
        request("silent", org="o1", response="I can't say.",
                retrieved=[{"owner_org": "o2", "text": text}]),
        request("own", org="o1", response=text, retrieved=[{"owner_org": "o1", "text": text}]),
    ]  # fmt: skip
    found = outcomes(tmp_path, records)["KVA503"]
    assert fired(found) == {"leak", "silent"}
    told = {item.sink_request_id: item.details["text_in_answer"] for item in found.evidence}
    assert told == {"leak": True, "silent": False}


def read_at_a_steady_rate(count: int, **changes: Any) -> list[dict[str, Any]]:
    """Long and short prompts of one replica that reads 40,000 tokens a second."""
    lengths = [1_500 + 997 * n for n in range(count)]
    return [request(f"steady-{n}", prompt_tokens=length, ttft_ms=40 + length / 40, replica="r",
                    **changes) for n, length in enumerate(lengths)]  # fmt: skip


def test_an_over_long_answer_is_explained_by_a_full_read_and_by_nothing_shorter(
    tmp_path: Path,
) -> None:
    long = 200_000  # takes 5 seconds at that rate
    records = read_at_a_steady_rate(60, cached_tokens=0)
    records += [request(f"at-{share}", prompt_tokens=long, replica="r", cached_tokens=0,
                        ttft_ms=share * 5_000) for share in (0.05, 0.3, 0.8, 2.0)]  # fmt: skip
    found = outcomes(tmp_path, records, pool_tokens=100_000)
    assert fired(found["KVA302"]) == {"at-0.05", "at-0.3"}
    assert set(explained(found["KVA302"])) == {"at-0.8", "at-2.0"}
    assert "2 answers over it took as long as a full read" in found["KVA302"].note
    assert fired(found["KVA303"]) == {"at-0.05"}


@pytest.mark.parametrize(("early", "cached", "is_explained"), [
    (40, None, True), (40, 0, False), (3, None, False),
])  # fmt: skip
def test_early_first_tokens_are_a_prefix_cache_where_it_is_not_told_and_they_are_many(
    tmp_path: Path, early: int, cached: int | None, is_explained: bool
) -> None:
    told = {} if cached is None else {"cached_tokens": cached}
    records = read_at_a_steady_rate(160, **told)
    records += [request(f"early-{n}", prompt_tokens=80_000 + n, replica="r", ttft_ms=60, **told)
                for n in range(early)]  # fmt: skip
    found = outcomes(tmp_path, records)["KVA303"]
    names = {f"early-{n}" for n in range(early)}
    assert (set(explained(found)) if is_explained else fired(found)) == names
    assert not (fired(found) if is_explained else explained(found))

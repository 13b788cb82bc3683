"""KVA303: a first token before the prompt can have been read fires; a quick machine does not."""

import random
from dataclasses import replace

import pytest

from kvaudit.detect.corpus import Corpus
from kvaudit.detect.timing import find_early_first_tokens
from kvaudit.records import Outcome, RequestRecord, Role


def timed(name, ttft_ms, *, sent=1400, role=Role.TRIGGER, wave=9, cached=0):
    return RequestRecord(
        request_id=name, tenant="a", role=role, wave=wave, outcome=Outcome.ANSWERED,
        output_text="text", ttft_ms=ttft_ms, prompt_tokens_sent=sent, cached_tokens=cached,
    )  # fmt: skip


def null(per_token=0.2, overhead=5.0, lengths=(200, 190, 195, 188, 660, 990, 199, 180)):
    return [
        timed(f"c{at}", overhead + per_token * sent, sent=sent, role=Role.CALIBRATION, wave=1)
        for at, sent in enumerate(lengths)
    ]


def find(*records, calibration=None):
    fill = timed("fill", 300.0, role=Role.FILL, wave=3)
    return find_early_first_tokens(
        Corpus(records=(*(null() if calibration is None else calibration), fill, *records))
    )


def test_a_first_token_in_under_a_tenth_of_the_fitted_time_fires():
    found = find(timed("r", 10.0))
    (evidence,) = found.evidence
    assert evidence.sink_request_id == "r"
    assert evidence.details["expected_ms"] == pytest.approx(1400 * (5 + 0.2 * 990) / 990, rel=1e-3)
    assert (found.null_alarms, found.null_trials) == (0, 8)


def test_a_prompt_that_came_out_of_the_cache_is_silent():
    assert find(timed("r", 10.0, cached=1392)).evidence == ()


def test_a_slow_first_token_is_silent():
    assert find(timed("r", 5_000.0)).evidence == ()


def test_no_healthy_request_fires_on_a_machine_that_is_now_and_then_busy():
    rng = random.Random(1)
    calibration = [
        replace(record, ttft_ms=(record.ttft_ms or 0) * rng.uniform(1, 8)) for record in null()
    ]
    healthy = [timed(f"r{at}", 0.2 * 1400 * rng.uniform(1, 8)) for at in range(200)]
    assert find(*healthy, calibration=calibration).evidence == ()


def test_a_server_whose_time_is_all_overhead_is_silent():
    calibration = null(per_token=0.001, overhead=100.0)
    healthy = [timed(f"r{sent}", 100.0, sent=sent) for sent in (600, 1400, 2400, 20_000)]
    assert find(*healthy, calibration=calibration).evidence == ()


def test_lengths_far_beyond_the_calibration_are_not_judged():
    found = find(timed("r", 1.0, sent=10_000))
    assert (found.evidence, found.examined) == ((), 1)  # the fill


def test_too_few_times_and_times_too_short_to_tell_make_it_unavailable():
    assert not find(timed("r", 1.0), calibration=null(lengths=(200,) * 6)).available
    assert not find(timed("r", 0.0), calibration=null(per_token=0.0, overhead=0.1)).available


def test_a_server_whose_calibration_is_all_short_has_no_such_oracle():
    found = find(timed("r", 1.0, sent=400), calibration=null(lengths=(200,) * 8))
    assert (found.available, found.evidence) == (False, ())
    assert "512" in found.reason

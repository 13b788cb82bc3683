"""The replay gap: caught, false alarms and cost, at the target's own threshold.

    python tests/bench/bench_replay.py --models copier smollm2 --dtypes float32 bfloat16 \
        --temperatures 0 0.7 --trials 32 --seed 9001

Faulty: the incident's trials; of the triggers that were answered, how many the rule flags, and how
many each statistic alone would. Healthy: in-limit requests, half of them alone and half eight at a
time, twice as many as trials. Both runs calibrate on their own controls. Cost is CPU time of the
replays of the healthy requests in percent of that of the requests themselves.
"""

import argparse
import platform
import subprocess
import sys
import time
from dataclasses import replace
from typing import NamedTuple

from bench_sensitivity import FAULT, Recorder

from engine.target import reference_target
from kvaudit.config import AuditConfig
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.null import before_first_fill
from kvaudit.detect.replay import find_replay_gaps, gap_of, threshold_of
from kvaudit.errors import KvauditError
from kvaudit.records import Outcome, Role
from probes.catalog import SCENARIOS
from probes.documents import Depth
from probes.plan import PlanContext
from probes.replaying import run_and_replay
from probes.slots import Slot, SlotWave, next_slot_wave

PROMPT_TOKENS, OUTPUT_TOKENS, COMPANY = 200, 24, 8


class Cost(NamedTuple):
    """CPU seconds of sending, and of sending with replays."""

    sent: float
    replayed: float


class Run(NamedTuple):
    """What one run showed."""

    corpus: Corpus
    cost: Cost


def run(*, model, dtype, temperature, seed, trials, fault):
    """Audit the engine with a fault, or send twice `trials` healthy requests."""
    config = AuditConfig(model=model, dtype=dtype, seed=seed, trials=trials, fault=fault)
    target = reference_target(config)
    facts = target.facts()
    context = PlanContext(config=config, facts=facts, count_tokens=target.count_tokens)
    recorder, records, sent, replayed = Recorder(), [], 0.0, 0.0
    while (wave := next_wave(context, records)) is not None:
        requests = tuple(
            replace(request, temperature=temperature, seed=number if temperature else None)
            for number, request in enumerate(wave.requests)
        )
        wave = replace(wave, requests=requests)
        scored = _Counting(target)
        began = time.process_time()
        made = run_and_replay(scored, wave, recorder, earlier=records, tokens_max=10**9)
        whole = time.process_time() - began
        if any(record.replay_logprobs is not None for record in made):
            sent += whole - scored.seconds
            replayed += scored.seconds
        records += made
    target.close()
    corpus = Corpus(records=tuple(records), twins=tuple(recorder.twins), facts=facts)
    return Run(corpus, Cost(sent, replayed))


class _Counting:
    """A target whose replays are timed."""

    def __init__(self, target):
        self._target = target
        self.seconds = 0.0

    def __getattr__(self, name):
        return getattr(self._target, name)

    def replay_obstacle(self, planned):
        return self._target.replay_obstacle(planned)

    def replay_logprobs(self, planned, output_token_ids):
        began = time.process_time()
        scores = self._target.replay_logprobs(planned, output_token_ids)
        self.seconds += time.process_time() - began
        return scores


def next_wave(context, records):
    """Return the incident's next wave, or that of the healthy requests."""
    if context.config.fault is not None:
        return SCENARIOS["incident"].next_wave(context, records)
    trials = context.config.trials
    slots = [
        Slot(
            name=f"{number:04}", tenant=number % context.config.tenants, role=Role.CONTROL,
            stratum="healthy", tokens=PROMPT_TOKENS - number % 24, max_tokens=OUTPUT_TOKENS,
            depth=list(Depth)[number % len(Depth)],
        )
        for number in range(2 * trials)
    ]  # fmt: skip
    waves = [
        SlotWave(slots=tuple(slots[:trials]), concurrency=1),
        SlotWave(slots=tuple(slots[trials:]), concurrency=COMPANY),
    ]
    return next_slot_wave(context, records, scenario="healthy", waves=waves)


def row(*, model, dtype, temperature, seed, trials):
    """Return one row of the table."""
    options = {"model": model, "dtype": dtype, "temperature": temperature, "seed": seed}
    faulty = run(**options, trials=trials, fault=FAULT)
    healthy = run(**options, trials=trials, fault=None)
    triggers = [
        record
        for record in faulty.corpus.records
        if record.role is Role.TRIGGER and record.outcome is Outcome.ANSWERED
    ]
    gaps = [gap for record in triggers if (gap := gap_of(record)) is not None]
    controls = [gap_of(record) for record in before_first_fill(faulty.corpus)]
    threshold = threshold_of([gap for gap in controls if gap], dtype=dtype)
    found = find_replay_gaps(faulty.corpus)
    sinks = {item.sink_request_id for item in found.evidence}
    caught = sum(record.request_id in sinks for record in triggers)
    by_mean = sum(gap.mean > threshold.mean for gap in gaps)
    by_token = sum(gap.token > threshold.token for gap in gaps)
    quiet = find_replay_gaps(healthy.corpus)
    asked = [record for record in healthy.corpus.records if record.stratum == "healthy"]
    measured = [gap for record in asked if (gap := gap_of(record)) is not None]
    alarms = {item.sink_request_id for item in quiet.evidence}
    is_alarm = sum(record.request_id in alarms for record in asked)
    if not found.available or not quiet.available:
        return f"| {model} | {dtype} | {temperature:g} | not available: {found.reason} |"
    least = min((gap.token for gap in gaps), default=float("nan"))
    most = max((gap.token for gap in measured), default=0.0)
    cost = 100 * healthy.cost.replayed / healthy.cost.sent
    return (
        f"| {model} | {dtype} | {temperature:g} | {caught}/{len(triggers)} | {by_mean} | {by_token}"
        f" | {is_alarm}/{len(measured)} | {threshold.mean:.2g} / {threshold.token:.2g}"
        f" | {most:.2g} | {least:.3g} | {cost:.0f} % |"
    )


def main():
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["copier"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seed", type=int, default=9001)
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    sys.stdout.write(
        f"fault {FAULT}, seed {asked.seed}, commit {commit}, {platform.machine()},"
        f" Python {platform.python_version()}\n"
        "| model | dtype | temperature | caught | by mean | by token | healthy alarms"
        " | threshold mean / token | largest healthy token | smallest faulty token | cost |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    )
    for model in asked.models:
        for dtype in asked.dtypes:
            for temperature in asked.temperatures:
                try:
                    line = row(
                        model=model, dtype=dtype, temperature=temperature, seed=asked.seed,
                        trials=asked.trials,
                    )  # fmt: skip
                except KvauditError as error:
                    line = f"| {model} | {dtype} | {temperature:g} | {error.message} |"
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

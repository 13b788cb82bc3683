"""The replay gap: caught, false alarms and cost, at the target's own threshold.

    python tests/bench/bench_replay.py --model smollm2 --dtype float32 --temperatures 0 0.7 \
        --trials 32 --seed 9001

Three tables from one model, on controls, documents and draws of one seed.

*The incident*: each trial is the incident's fill, then one trigger for each temperature; how many
of the answered triggers the rule flags, and how many each statistic alone would.
*Healthy*: in-limit requests to an engine without a fault, `--trials` of them alone and as many
eight at a time, for each temperature. The threshold comes from the controls of that engine, which
are none of these. Cost is CPU time of the replays in percent of that of the requests.
*Small faults* (`--tables small`): the right prompt is in the pages but for one wrong page, a stale
last page, two pages that a late writer wrote over, or one stale page past the end. They are done by
hand on the model's pages, greedily, since they are milder than the catalogue's faults.
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from bench_sensitivity import FAULT, Recorder

from engine.attention import SequenceStep
from engine.target import reference_target
from kvaudit.config import AuditConfig
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.null import before_first_fill
from kvaudit.detect.replay import Gap, find_replay_gaps, gap_of, threshold_of
from kvaudit.records import Outcome, Role
from probes.catalog.fill import fill_wave
from probes.catalog.incident import TRIGGER_ANSWER, trigger_slot
from probes.documents import Depth, DocumentWriter, attributes_of
from probes.geometry import geometry_of
from probes.plan import PlanContext
from probes.replaying import run_and_replay
from probes.slots import Slot, SlotWave, next_slot_wave

PROMPT_TOKENS, OUTPUT_TOKENS, COMPANY = 200, 24, 8
PAGE = 16
SMALL_FAULTS = ("none", "wrong page", "stale last page", "late writer, two pages", "one page more")


class Side(NamedTuple):
    """One engine and what it needs to be sent waves."""

    target: object
    context: PlanContext
    recorder: Recorder


class Cost(NamedTuple):
    """CPU seconds of requests, and of their replays."""

    sent: float
    replayed: float


def side(asked, *, fault):
    config = AuditConfig(
        model=asked.model, dtype=asked.dtype, seed=asked.seed, trials=asked.trials, fault=fault
    )
    target = reference_target(config)
    context = PlanContext(config=config, facts=target.facts(), count_tokens=target.count_tokens)
    return Side(target, context, Recorder())


def send(held, records, waves, *, scenario, temperature=0.0):
    """Send waves until none is left; returns their records and what they cost."""
    made, sent, replayed = [], 0.0, 0.0
    while True:
        wave = next_slot_wave(held.context, [*records, *made], scenario=scenario, waves=waves)
        if wave is None:
            return made, Cost(sent, replayed)
        requests = tuple(
            replace(request, temperature=temperature, seed=number if temperature else None)
            for number, request in enumerate(wave.requests)
        )
        scored = _Timed(held.target)
        began = time.process_time()
        made += run_and_replay(
            scored, replace(wave, requests=requests), held.recorder, tokens_max=10**9
        )
        sent += time.process_time() - began - scored.seconds
        replayed += scored.seconds


class _Timed:
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


def healthy_waves(context, temperature):
    """Return as many requests alone as in company."""
    trials, tenants = context.config.trials, context.config.tenants
    slots = [
        Slot(
            name=f"{temperature:g}-{number:04}", tenant=number % tenants, role=Role.CONTROL,
            stratum="healthy", tokens=PROMPT_TOKENS - number % 24, max_tokens=OUTPUT_TOKENS,
            depth=list(Depth)[number % len(Depth)],
        )
        for number in range(2 * trials)
    ]  # fmt: skip
    return (
        SlotWave(slots=tuple(slots[:trials]), concurrency=1),
        SlotWave(slots=tuple(slots[trials:]), concurrency=COMPANY),
    )


def faulty_records(asked, temperatures, controls):
    """Send the incident's trials, with one trigger for each temperature behind each fill."""
    held = side(asked, fault=FAULT)
    geometry = geometry_of(held.context.facts, answer_tokens=TRIGGER_ANSWER)
    records = []
    for trial in range(asked.trials):
        sender = trial % held.context.config.tenants
        fill = fill_wave(geometry, block=trial, tenants=held.context.config.tenants, avoid=sender)
        records += send(held, [*controls, *records], [fill], scenario="incident")[0]
        rng = random.Random(f"{asked.seed}/replay/{trial}")
        trigger = trigger_slot(geometry, rng, number=trial, sender=sender, fill=fill.slots[0])
        for temperature in temperatures:
            slot = replace(
                trigger, name=f"{trigger.name}-{temperature:g}", max_tokens=OUTPUT_TOKENS
            )
            wave = SlotWave(slots=(slot,), concurrency=1)
            records += send(
                held, [*controls, *records], [wave], scenario="incident", temperature=temperature
            )[0]
        _progress(f"{asked.dtype}: trial {trial + 1} of {asked.trials}")
    held.target.close()
    return records, held


def incident_row(asked, temperature, controls, healthy, faulty, facts, cost):
    """Return one row of the first table."""
    triggers = [
        record
        for record in faulty
        if record.role is Role.TRIGGER
        and record.outcome is Outcome.ANSWERED
        and record.request_id.endswith(f"-{temperature:g}")
    ]
    found = find_replay_gaps(Corpus(records=(*controls, *faulty), facts=facts))
    if not found.available:
        return [asked.dtype, f"{temperature:g}", f"not available: {found.reason}"]
    threshold = own_threshold(controls, facts)
    sinks = {item.sink_request_id for item in found.evidence}
    gaps = [gap for record in triggers if (gap := gap_of(record)) is not None]
    calm = [gap for record in healthy if (gap := gap_of(record)) is not None]
    alarms = [threshold.is_passed_by(gap) for gap in calm]
    half = len(healthy) // 2
    return [
        asked.dtype, f"{temperature:g}",
        f"**{sum(record.request_id in sinks for record in triggers)}/{len(triggers)}**",
        sum(gap.mean > threshold.mean for gap in gaps),
        sum(gap.token > threshold.token for gap in gaps),
        f"{sum(alarms[:half])}/{half}", f"{sum(alarms[half:])}/{len(alarms) - half}",
        f"{threshold.mean:.2g} / {threshold.token:.2g}",
        f"{max(gap.mean for gap in calm):.2g} / {max(gap.token for gap in calm):.2g}",
        f"{min(gap.mean for gap in gaps):.2g} / {min(gap.token for gap in gaps):.2g}",
        *(f"{100 * part.replayed / part.sent:.0f} %" for part in cost),
    ]  # fmt: skip


def incident_table(asked, sound, controls):
    """Measure and print the first table."""
    calm, costs = {}, {}
    for temperature in asked.temperatures:
        calm[temperature], costs[temperature] = [], []
        for wave in healthy_waves(sound.context, temperature):
            made, cost = send(sound, controls, [wave], scenario="healthy", temperature=temperature)
            calm[temperature] += made
            costs[temperature].append(cost)
        _progress(f"{asked.dtype}: healthy at temperature {temperature:g} done")
    faulty, _ = faulty_records(asked, asked.temperatures, controls)
    _say(_line([
        "dtype", "temperature", "caught", "by mean", "by token", "alarms, alone",
        "alarms, in company", "threshold mean / token", "largest healthy", "smallest faulty",
        "cost alone", "cost in company",
    ]) + _line(["---"] * 12))  # fmt: skip
    for temperature in asked.temperatures:
        _say(_line(incident_row(
            asked, temperature, controls, calm[temperature], faulty, sound.context.facts,
            costs[temperature],
        )))  # fmt: skip


def own_threshold(controls, facts):
    """Return the threshold that this target's own controls give."""
    calm = before_first_fill(Corpus(records=tuple(controls), facts=facts))
    return threshold_of([gap for record in calm if (gap := gap_of(record))], dtype=facts.dtype)


def small_fault_gaps(model, asked):
    """Return the gaps and whether the answer changed, by small fault, one each a trial."""
    gaps = defaultdict(list)
    changed = defaultdict(int)
    prompt_pages = -(-PROMPT_TOKENS // PAGE)
    each = prompt_pages + -(-OUTPUT_TOKENS // PAGE) + 1
    cache = model.new_cache((1 + len(SMALL_FAULTS)) * each, PAGE)
    for trial in range(asked.trials):
        rng = random.Random(f"{asked.seed}/small/{trial}")
        tables = [tuple(range(at * each, (at + 1) * each)) for at in range(1 + len(SMALL_FAULTS))]
        foreign, prompt = (_prompt(model, asked, trial, tenant) for tenant in range(2))
        _prefilled(model, cache, tables[0], foreign)
        # What an earlier, longer request left past the end of this one: read by `one page more`.
        filled = -(-len(foreign) // PAGE)
        for page in tables[0][filled:]:
            cache.copy_page_from(cache, tables[0][page % filled], page)
        logits = _prefilled(model, cache, tables[1], prompt)
        _copy_tables(cache, tables, stale=tables[0], used=-(-len(prompt) // PAGE))
        seen = _break(cache, tables, rng, prompt_pages=-(-len(prompt) // PAGE))
        outputs, scores = _decoded(model, cache, tables[1:], seen, prompt, logits)
        replays = {}
        for name, output, made in zip(SMALL_FAULTS, outputs, scores, strict=True):
            known = tuple(output)
            if known not in replays:
                replays[known] = model.replay_logprobs(prompt, output)
            apart = [abs(a - b) for a, b in zip(made, replays[known], strict=True)]
            gaps[name].append(Gap(mean=sum(apart) / len(apart), token=max(apart)))
            changed[name] += output != outputs[0]
        _progress(f"{asked.dtype}: small faults {trial + 1} of {asked.trials}")
    return gaps, changed


def _prompt(model, asked, trial, tenant):
    writer = DocumentWriter(
        seed=asked.seed, label=f"small-{trial}-{tenant}", tenant=f"tenant-{tenant + 1}",
        tokens=PROMPT_TOKENS - trial % PAGE, attributes=attributes_of(tenant, 2),
        count_tokens=lambda text: len(model.encode(text)),
    )  # fmt: skip
    return model.encode(writer.write(depth=list(Depth)[trial % len(Depth)]).text)


def _prefilled(model, cache, table, prompt):
    step = SequenceStep(
        tokens=tuple(prompt), first_position=0, page_table=table, kv_len=len(prompt),
        wants_logits=True,
    )  # fmt: skip
    return model.step(cache, [step])[0]


def _copy_tables(cache, tables, *, stale, used):
    """Give every variant the prompt's pages, and stale ones behind them."""
    for table in tables[1:]:
        for place, page in enumerate(table):
            source = tables[1][place] if place < used else stale[place]
            if page != source:
                cache.copy_page_from(cache, source, page)


def _break(cache, tables, rng, *, prompt_pages):
    """Plant one fault in each variant's pages; returns how many more slots each one sees."""
    stale = tables[0]
    wrong, last, late = tables[2], tables[3], tables[4]
    middle = rng.randrange(1, prompt_pages - 1)
    cache.copy_page_from(cache, stale[middle], wrong[middle])
    cache.copy_page_from(cache, stale[prompt_pages - 1], last[prompt_pages - 1])
    for place in rng.sample(range(prompt_pages), 2):
        cache.copy_page_from(cache, stale[place], late[place])
    return [PAGE if name == "one page more" else 0 for name in SMALL_FAULTS]


def _decoded(model, cache, tables, more, prompt, logits):
    """Decode all variants together; returns output tokens and their log-probabilities."""
    first = torch.log_softmax(logits, dim=-1)
    token = int(first.argmax())
    outputs = [[token] for _ in tables]
    scores = [[float(first[token])] for _ in tables]
    for position in range(len(prompt), len(prompt) + OUTPUT_TOKENS - 1):
        rows = model.step(
            cache,
            [
                SequenceStep(
                    tokens=(output[-1],), first_position=position, page_table=table,
                    kv_len=position + 1 + extra, wants_logits=True,
                )
                for output, table, extra in zip(outputs, tables, more, strict=True)
            ],
        )  # fmt: skip
        for output, made, row in zip(outputs, scores, torch.log_softmax(rows, -1), strict=True):
            output.append(int(row.argmax()))
            made.append(float(row[output[-1]]))
    return outputs, scores


def small_rows(asked, threshold, gaps, changed):
    """Return the second table's rows."""
    for name in SMALL_FAULTS:
        held = gaps[name]
        yield [
            asked.dtype, name, f"{changed[name]}/{len(held)}",
            f"**{sum(threshold.is_passed_by(gap) for gap in held)}/{len(held)}**",
            sum(gap.mean > threshold.mean for gap in held),
            sum(gap.token > threshold.token for gap in held),
            *(
                f"{min(values):.2g} / {statistics.median(values):.2g} / {max(values):.2g}"
                for values in ([gap.mean for gap in held], [gap.token for gap in held])
            ),
        ]  # fmt: skip


def _line(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def _say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def _progress(text):
    sys.stderr.write(f"{text}\n")


def main():
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="copier")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.7])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seed", type=int, default=9001)
    parser.add_argument(
        "--tables", nargs="+", choices=("incident", "small"), default=["incident", "small"]
    )
    asked = parser.parse_args()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    _say(
        f"`{asked.model}`, fault `{FAULT}`, {asked.trials} trials, seed {asked.seed}, commit"
        f" {commit or 'unknown'}; {platform.machine()},"
        f" {torch.backends.cpu.get_cpu_capability()}, Python {platform.python_version()}\n\n"
    )
    sound = side(asked, fault=None)
    controls, _ = send(sound, [], [], scenario="healthy")
    if "incident" in asked.tables:
        incident_table(asked, sound, controls)
    if "small" in asked.tables:
        gaps, changed = small_fault_gaps(sound.target.model, asked)
        _say("\n" + _line([
            "dtype", "small fault", "answer changed", "caught", "by mean", "by token",
            "mean gap, least / median / most", "token gap, least / median / most",
        ]) + _line(["---"] * 8))  # fmt: skip
        for cells in small_rows(asked, own_threshold(controls, sound.context.facts), gaps, changed):
            _say(_line(cells))


if __name__ == "__main__":
    main()

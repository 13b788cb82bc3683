"""What oracles see that a swap of answers on paper can't show: planted faults, counted.

    python tests/bench/bench_sensitivity.py --trials 32 --seed 4711 [--write]

One audit of the reference engine with the incident's fault; for each rule, of the triggers that
were answered (each of them computed from other tenants' pages), how many it flags. `--write` puts
the counts into the data file that the judge reads.
"""

import argparse
import json
import platform
import subprocess
import sys
from importlib import resources
from pathlib import Path

from engine.target import reference_target
from kvaudit.config import AuditConfig
from kvaudit.detect.catalogue import DETECTORS
from kvaudit.detect.corpus import Corpus
from kvaudit.detect.reference import FILE_NAME
from kvaudit.records import Outcome, Role
from probes.plan import PlanContext, plan_for
from probes.replaying import run_and_replay

RULES = ("KVA302", "KVA303", "KVA407", "KVA408")
FAULT = "reject-not-propagated"


class Recorder:
    """Keeps the twins, writes nothing."""

    def __init__(self):
        self.twins = []

    def begin(self, planned, wave_index):
        pass

    def end(self, reply):
        pass

    def replay(self, replay):
        pass

    def twin(self, planned):
        self.twins.append(planned)


def audited_corpus(*, model, fault, trials, seed, dtype="float32"):
    """Run one audit in process and return what detectors see of it."""
    config = AuditConfig(model=model, fault=fault, trials=trials, seed=seed, dtype=dtype)
    target = reference_target(config)
    facts = target.facts()
    context = PlanContext(config=config, facts=facts, count_tokens=target.count_tokens)
    recorder, records = Recorder(), []
    for probe in plan_for(config):
        while (wave := probe.next_wave(context, records)) is not None:
            records += run_and_replay(target, wave, recorder, earlier=records)
    target.close()
    return Corpus(records=tuple(records), twins=tuple(recorder.twins), facts=facts)


def measure(corpus):
    """Return, by rule, flagged triggers, answered triggers and flagged others."""
    triggers = {
        record.request_id
        for record in corpus.records
        if record.role is Role.TRIGGER and record.outcome is Outcome.ANSWERED
    }
    counts = {}
    for detector in DETECTORS:
        if detector.rule_id in RULES:
            found = {item.sink_request_id for item in detector.find(corpus).evidence}
            counts[detector.rule_id] = (len(found & triggers), len(triggers), len(found - triggers))
    return counts


def main():
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="copier")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--seed", type=int, default=4711)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    settings = {"model": asked.model, "seed": asked.seed}
    counts = measure(
        audited_corpus(model=asked.model, fault=FAULT, trials=asked.trials, seed=asked.seed)
    )
    healthy = measure(
        audited_corpus(model=asked.model, fault=None, trials=asked.trials, seed=asked.seed)
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    sys.stdout.write(
        f"model {asked.model}, fault {FAULT}, seed {asked.seed}, commit {commit},"
        f" {platform.machine()}, Python {platform.python_version()}\n"
        "| rule | triggers flagged | other requests flagged | flagged without a fault |\n"
        "| --- | --- | --- | --- |\n"
    )
    for rule_id, (hits, trials, others) in counts.items():
        alarms = healthy[rule_id][0] + healthy[rule_id][2]
        sys.stdout.write(f"| {rule_id} | {hits}/{trials} | {others} | {alarms} |\n")
    if asked.write:
        rules = {
            rule_id: {"hits": hits, "trials": trials, "fault": FAULT, **settings}
            for rule_id, (hits, trials, _) in counts.items()
        }
        path = Path(str(resources.files("kvaudit.detect").joinpath(FILE_NAME)))
        command = f"python tests/bench/bench_sensitivity.py --trials {asked.trials}"
        command += f" --seed {asked.seed} --model {asked.model} --write"
        path.write_text(json.dumps({"made_by": command, "rules": rules}, indent=1) + "\n")


if __name__ == "__main__":
    main()

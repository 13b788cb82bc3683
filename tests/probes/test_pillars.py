"""The two pillars, end to end: every fault convicts, every healthy run is clean.

The fast ones run on the engine's model-free stand-in, the slow ones on the built-in copier, scored
against the engine's trace of who wrote the slots that a request read.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest

from engine.config import sized_for, with_needs
from engine.engine import build_engine
from engine.faults import FAULTS, fault_plan
from engine.target import ReferenceTarget
from kvaudit.audit import judge_run
from kvaudit.clock import SimulatedClock
from kvaudit.config import AuditConfig
from kvaudit.detect.answers import is_right
from kvaudit.findings import AuditRun, Kind, Verdict
from kvaudit.records import Outcome, RequestRecord, Role
from probes.plan import PlanContext, plan_for
from probes.replaying import run_and_replay

FIXES = ("door", "retire", "checksum", "coverage")


class NoJournal:
    """Keeps the twins and forgets the rest."""

    def __init__(self):
        self.twins = []

    def begin(self, planned, wave_index):
        pass

    def end(self, reply):
        pass

    def twin(self, planned):
        self.twins.append(planned)

    def replay(self, replay):
        pass


class Audited(NamedTuple):
    """One audit of the reference engine, with the engine that it was."""

    run: AuditRun
    records: list[RequestRecord]
    target: ReferenceTarget

    def answers(self):
        """Return what was answered, token by token, by request."""
        return {
            record.request_id: (record.output_token_ids, record.output_logprobs)
            for record in self.records
            if record.outcome is Outcome.ANSWERED
        }

    def exposed(self):
        """Return the sinks with foreign text, and the sources named for each."""
        named = {}
        for finding in self.run.findings:
            if finding.kind is Kind.EXPOSURE:
                sink = finding.evidence.sink_request_id
                named.setdefault(sink, set()).add(finding.evidence.source.request_id)
        return named


@cache
def audited(model, *, fault=None, fixes=(), trials=None, seed=1, parts=()):
    """Audit the reference engine as the command line does, with `parts` of it switched on."""
    config = AuditConfig(model=model, fault=fault, fixes=fixes, trials=trials, seed=seed)
    on = dict.fromkeys(parts, True)
    sized = replace(sized_for(model), seed=seed, trace=True, **on)
    engine_config, _ = with_needs(sized, fault_plan(fault, fixes))
    engine, built = build_engine(engine_config, clock=SimulatedClock())
    target = ReferenceTarget(engine, built)
    facts = target.facts()
    context = PlanContext(config=config, facts=facts, count_tokens=target.count_tokens)
    journal, records, strata = NoJournal(), [], []
    for probe in plan_for(config):
        strata += probe.strata(context)
        while (wave := probe.next_wave(context, records)) is not None:
            records += run_and_replay(target, wave, journal, earlier=records)
    run = judge_run(
        records=records, twins=journal.twins, config=config, strata=strata, facts=facts,
        run_id="test",
    )  # fmt: skip
    return Audited(run, records, target)


@pytest.mark.parametrize("trials", [None, 7])
def test_the_healthy_stand_in_is_clean(trials):
    run = audited("tags", trials=trials).run
    assert (run.verdict, run.findings) == (Verdict.CLEAN, ())


def test_the_incident_convicts_the_stand_in_and_names_whose_slots_it_read():
    audit = audited("tags", fault="reject-not-propagated")
    assert audit.run.verdict is Verdict.CONTAMINATED
    _assert_sources_are_those_of_the_trace(audit)


def test_the_incident_leaves_a_replay_gap_on_the_stand_in_and_a_healthy_run_none():
    gaps = {}
    for fault in ("reject-not-propagated", None):
        (report,) = [
            item for item in audited("tags", fault=fault).run.oracles if item.rule_id == "KVA408"
        ]
        assert (report.available, report.false_alarms) == (True, 0), report.reason
        assert report.trials >= 30
        gaps[fault] = report.fired
    assert gaps["reject-not-propagated"] >= 14
    assert gaps[None] == 0


def test_no_oracle_alarms_on_the_healthy_stand_in():
    for trials in (None, 7):
        reports = audited("tags", trials=trials).run.oracles
        assert {item.rule_id: item.fired for item in reports if item.fired} == {}


@pytest.mark.parametrize("fix", FIXES)
def test_each_fix_of_the_incident_makes_the_stand_in_clean(fix):
    audit = audited("tags", fault="reject-not-propagated", fixes=(fix,), trials=7)
    assert audit.run.verdict is Verdict.CLEAN, audit.run.reasons


def test_a_prefix_collision_convicts_the_stand_in():
    run = audited("tags", fault="prefix-hash-collision").run
    assert run.verdict is Verdict.CONTAMINATED


@pytest.mark.parametrize(
    ("fault", "sinks"),
    [
        ("partial-transfer", "last-in-limit-page"),
        ("early-free-late-writer", "after-an-abort"),
        ("row-reuse", "after-an-abort"),
        ("wrong-adapter-key", "look"),
    ],
)
def test_profile_quick_convicts_the_stand_in_where_the_fault_strikes_and_nowhere_else(fault, sinks):
    audit = audited("tags", fault=fault)
    assert audit.run.verdict is Verdict.CONTAMINATED
    found = {
        finding.evidence.sink_request_id
        for finding in audit.run.findings
        if finding.evidence.rule_id in ("KVA401", "KVA408")
    }
    assert len(found) >= 3
    assert all(sink.endswith(sinks) for sink in found)
    trace = audit.target.engine.trace
    assert all(trace.reads_of(sink).stale for sink in found)


@pytest.mark.parametrize(
    ("fault", "fix"),
    [
        ("partial-transfer", "checksum"),
        ("partial-transfer", "coverage"),
        ("early-free-late-writer", "deferred-release"),
        ("row-reuse", "deferred-release"),
    ],
)
def test_the_fix_of_a_fault_makes_the_stand_in_clean(fault, fix):
    fixed = audited("tags", fault=fault, fixes=(fix,))
    healthy = audited("tags", parts=("overlap",) if fault == "row-reuse" else ())
    assert (fixed.run.verdict, fixed.run.findings) == (Verdict.CLEAN, ())
    assert fixed.answers() == healthy.answers()


@pytest.mark.parametrize("parts", [("prefix_cache",), ("overlap",)])
def test_the_healthy_twin_with_the_same_parts_on_is_clean(parts):
    run = audited("tags", parts=parts).run
    assert run.verdict is Verdict.CLEAN, run.reasons
    # Tenants without a salt share the cache, which is told and decides nothing.
    assert {finding.kind for finding in run.findings} <= {Kind.SHARING}


def test_a_run_is_the_same_twice():
    one = audited("tags", fault="reject-not-propagated", trials=7)
    two = audited.__wrapped__("tags", fault="reject-not-propagated", trials=7)
    assert one.records == two.records
    assert one.run == two.run


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 20])
def test_the_incident_shows_foreign_text_in_nearly_every_trigger(seed):
    audit = audited("copier", fault="reject-not-propagated", trials=32, seed=seed)
    assert audit.run.verdict is Verdict.CONTAMINATED
    triggers = {r.request_id for r in audit.records if r.role is Role.TRIGGER}
    assert len(triggers & set(audit.exposed())) >= 30
    _assert_sources_are_those_of_the_trace(audit)


@pytest.mark.slow
@pytest.mark.parametrize("rule_id", ["KVA302", "KVA407", "KVA408"])
def test_every_over_limit_answer_of_the_incident_is_seen_without_any_foreign_text(rule_id):
    run = audited("copier", fault="reject-not-propagated", trials=32, seed=1).run
    seen = {
        finding.evidence.sink_request_id
        for finding in run.findings
        if finding.evidence.rule_id == rule_id
    }
    assert len(seen) == 32


@pytest.mark.slow
def test_the_healthy_copier_is_clean_and_answers_every_control_right():
    audit = audited("copier", trials=32, seed=3)
    assert (audit.run.verdict, audit.run.findings) == (Verdict.CLEAN, ())
    controls = [record for record in audit.records if record.stratum == "in-limit"]
    assert len(controls) == 32
    assert all(is_right(record) for record in controls)


@pytest.mark.slow
@pytest.mark.parametrize("fix", FIXES)
def test_each_fix_of_the_incident_makes_the_copier_clean(fix):
    audit = audited("copier", fault="reject-not-propagated", fixes=(fix,), trials=7)
    assert audit.run.verdict is Verdict.CLEAN, audit.run.reasons
    controls = [record for record in audit.records if record.role is Role.CONTROL]
    assert all(is_right(record) for record in controls)


@pytest.mark.slow
@pytest.mark.parametrize("fixes", [(), ("door",)])
def test_one_sided_truncation_convicts_by_foreign_text_also_behind_the_door(fixes):
    audit = audited("copier", fault="one-sided-truncate", fixes=fixes, trials=8, seed=2)
    assert audit.run.verdict is Verdict.CONTAMINATED
    assert audit.exposed()
    _assert_sources_are_those_of_the_trace(audit)


@pytest.mark.slow
def test_coverage_stops_one_sided_truncation():
    audit = audited("copier", fault="one-sided-truncate", fixes=("coverage",), trials=8, seed=2)
    assert audit.run.verdict is Verdict.CLEAN, audit.run.reasons


@pytest.mark.slow
# What no client can meet, since rooms are used again in the simulator alone, convicts nobody here.
@pytest.mark.parametrize("fault", [name for name, spec in FAULTS.items() if spec.caught_by])
def test_profile_quick_meets_every_fault(fault):
    assert audited("copier", fault=fault).run.verdict is Verdict.CONTAMINATED


@pytest.mark.slow
@pytest.mark.parametrize("parts", [(), ("prefix_cache", "overlap")])
def test_profile_quick_is_clean_on_the_healthy_copier(parts):
    run = audited("copier", parts=parts).run
    assert run.verdict is Verdict.CLEAN, run.reasons
    assert {finding.kind for finding in run.findings} <= {Kind.SHARING}


def _assert_sources_are_those_of_the_trace(audit):
    """Every named source has written slots that the sink has read."""
    named = audit.exposed()
    assert named
    for sink, sources in named.items():
        writers = set()
        for role in ("prefill", "decode"):
            writers |= set(audit.target.engine.trace.reads_of(sink, role).foreign)
        assert sources <= writers, sink

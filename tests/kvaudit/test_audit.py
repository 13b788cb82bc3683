"""judge_run: records in, AuditRun out, JSON values only."""

import json

import kvaudit
from kvaudit.audit import judge_run
from kvaudit.config import AuditConfig
from kvaudit.findings import Verdict
from kvaudit.records import Outcome, RequestRecord
from kvaudit.serverfacts import RoleFacts, ServerFacts


def judged(records=(), **more):
    return judge_run(
        records=records,
        twins=(),
        config=AuditConfig(seed=7, fixes=("door",)),
        strata=("in-limit",),
        facts=ServerFacts(kind="x", roles=(RoleFacts(role="prefill", pool_tokens=64),)),
        run_id="r",
        repeat="kvaudit audit",
        **more,
    )


def test_a_run_carries_what_repeats_it():
    run = judged(started_unix_ns=1, ended_unix_ns=2)
    assert (run.run_id, run.seed, run.repeat, run.version) == (
        "r", 7, "kvaudit audit", kvaudit.__version__,
    )  # fmt: skip
    assert (run.started_unix_ns, run.ended_unix_ns) == (1, 2)


def test_configuration_and_facts_are_json_values():
    run = judged()
    assert json.loads(json.dumps(run.config))["fixes"] == ["door"]
    assert json.loads(json.dumps(run.target))["roles"][0]["pool_tokens"] == 64


def test_an_empty_run_is_inconclusive():
    assert judged().verdict is Verdict.INCONCLUSIVE


def test_why_it_was_stopped_is_the_first_reason():
    record = RequestRecord(request_id="a", tenant="t", outcome=Outcome.UNKNOWN)
    assert judged([record], stopped="interrupted").reasons[0] == "the run was stopped: interrupted"


def test_the_same_records_give_the_same_run():
    record = RequestRecord(request_id="a", tenant="t", outcome=Outcome.ANSWERED, output_text="x")
    assert judged([record]) == judged([record])

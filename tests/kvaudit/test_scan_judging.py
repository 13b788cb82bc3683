"""What a scan may conclude."""

from typing import Any

import pytest

from kvaudit.findings import Evidence, Kind, NotExaminable, Severity, Verdict
from kvaudit.forensics.metadata import RuleOutcome
from kvaudit.scan.coverage import Coverage
from kvaudit.scan.judging import judge_scan

FULL = Coverage(expected=100, examined=100, missing=(), apart=())


def seen(rule_id: str, sink: str = "r1", chance: float | None = None, **details: Any) -> Evidence:
    return Evidence(rule_id=rule_id, sink_request_id=sink, sink_tenant="t", score=1.0,
                    chance=chance, details={"record_id": sink, **details})  # fmt: skip


def judged(*evidence: Evidence, coverage: Coverage = FULL, **more: Any) -> Any:
    outcomes = [RuleOutcome(rule_id=item.rule_id, evidence=(item,), fired=1, examined=100)
                for item in evidence]  # fmt: skip
    return judge_scan(outcomes, coverage, min_coverage=0.99, **more)


def test_nothing_found_in_examined_answers_is_clean() -> None:
    found = judged()
    assert found.verdict is Verdict.CLEAN
    assert "100 examined answers" in found.reasons[0]


def test_two_families_on_one_request_convict_and_on_two_requests_do_not() -> None:
    one = judged(seen("KVA302"), seen("KVA303"))
    assert one.verdict is Verdict.CONTAMINATED
    assert {f.severity for f in one.findings} == {Severity.CRITICAL}
    assert one.reasons[0] == (
        "independent families on one request: accounting (KVA302), timing (KVA303) (1 answer)"
    )
    two = judged(seen("KVA302", "r1"), seen("KVA303", "r2"))
    assert two.verdict is Verdict.INCONCLUSIVE
    assert "one family only: KVA302 and KVA303" in two.reasons[0]


def test_two_rules_of_one_family_are_one_witness() -> None:
    assert judged(seen("KVA302"), seen("KVA305")).verdict is Verdict.INCONCLUSIVE


def test_what_is_explained_away_is_a_candidate_and_no_witness() -> None:
    found = judged(seen("KVA302", explained_by="server truncates: usage shows the cut"),
                   seen("KVA303"))  # fmt: skip
    assert found.verdict is Verdict.INCONCLUSIVE
    assert [item.rule_id for item in found.candidates] == ["KVA302"]
    assert [item.evidence.rule_id for item in found.findings] == ["KVA303"]


def test_an_accounting_note_is_listed_and_bars_nothing() -> None:
    note = judged(seen("KVA301", is_tiny=False))
    assert note.verdict is Verdict.CLEAN
    assert note.findings[0].severity is Severity.WARNING
    assert judged(seen("KVA301", is_tiny=True)).verdict is Verdict.INCONCLUSIVE
    assert judged(seen("KVA301", is_tiny=False), seen("KVA303")).verdict is Verdict.INCONCLUSIVE
    assert judged(seen("KVA301", is_tiny=True), seen("KVA303")).verdict is Verdict.CONTAMINATED


@pytest.mark.parametrize("rule_id", ["KVA304", "KVA501", "KVA502", "KVA503"])
def test_sharing_and_supporting_notes_never_decide(rule_id: str) -> None:
    found = judged(seen(rule_id))
    assert found.verdict is Verdict.CLEAN
    assert len(found.findings) == 1


def test_an_item_of_another_owner_is_misdelivery_only_when_its_text_is_in_the_answer() -> None:
    assert judged(seen("KVA503", text_in_answer=True)).findings[0].kind is Kind.MISDELIVERY
    assert judged(seen("KVA503", text_in_answer=False)).findings[0].kind is Kind.ACCOUNTING


@pytest.mark.parametrize("rule_id", ["KVA402", "KVA403", "KVA404", "KVA405"])
def test_incoherence_never_convicts_alone_or_in_a_pair(rule_id: str) -> None:
    found = judged(seen(rule_id), seen("KVA402" if rule_id != "KVA402" else "KVA404"))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons == ("corrupt, no source (1 answer)",)


def test_an_exposure_convicts_below_its_bar_and_is_a_candidate_above_it() -> None:
    assert judged(seen("KVA201", chance=1e-9)).verdict is Verdict.CONTAMINATED
    weak = judged(seen("KVA201", chance=1e-3))
    assert weak.verdict is Verdict.CLEAN
    assert [item.rule_id for item in weak.candidates] == ["KVA201"]
    item = seen("KVA201")
    assert judged(item, q_values={id(item): 0.01}).verdict is Verdict.CONTAMINATED
    assert judged(item, q_values={id(item): 0.2}).verdict is Verdict.CLEAN


def test_too_little_coverage_and_nothing_to_examine_are_not_clean() -> None:
    partly = Coverage(expected=100, examined=90, apart=(),
                      missing=(NotExaminable(reason="answer is encrypted", count=10),))  # fmt: skip
    found = judged(coverage=partly)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "only 90.0% of 100 answers" in found.reasons[0]
    assert found.not_examinable == partly.missing
    nothing = Coverage(expected=0, examined=0, missing=(), apart=())
    assert judged(coverage=nothing).verdict is Verdict.INCONCLUSIVE


def test_an_obstacle_bars_clean_and_does_not_hide_a_conviction() -> None:
    assert judged(obstacles=["no tenant"]).verdict is Verdict.INCONCLUSIVE
    pair = judged(seen("KVA302"), seen("KVA303"), obstacles=["no tenant"])
    assert pair.verdict is Verdict.CONTAMINATED

"""The JSON contract."""

import json
from dataclasses import replace

import pytest

from reports.json_report import json_schema, render_json, report_json


@pytest.mark.parametrize("which", ["incident", "healthy", "undecided"])
@pytest.mark.parametrize("reveal", [False, True])
def test_every_run_keeps_the_shipped_schema(which, reveal, request, key, broken_rules):
    schema = json_schema()
    shown = json.loads(render_json(request.getfixturevalue(which), reveal=reveal, key=key))
    assert list(broken_rules(shown, schema, schema)) == []


def test_the_schema_check_sees_a_missing_field_a_wrong_type_and_a_wrong_word(
    incident, broken_rules
):
    schema = json_schema()
    shown = report_json(incident)
    del shown["seed"]
    shown["verdict"] = "fine"
    shown["bounds"][0]["upper"] = 2
    shown["findings"][0]["sink"] = None
    broken = " ".join(broken_rules(shown, schema, schema))
    for path in ("$: seed", "$.verdict", "$.bounds[0].upper", "$.findings[0].sink"):
        assert path in broken


def test_fields_have_the_names_of_the_contract(incident):
    shown = report_json(incident)
    assert {
        "schema", "run_id", "command", "verdict", "reasons", "findings", "bounds", "oracles",
        "not_examinable", "counts", "seed", "version",
    } <= set(shown)  # fmt: skip
    assert {
        "rule", "kind", "severity", "sink", "source", "excerpt", "score", "q_value", "details",
    } <= set(shown["findings"][0])  # fmt: skip
    assert set(shown["findings"][0]["source"]) == {"request_id", "tenant", "side"}
    assert {"stratum", "requests", "detections", "sensitivity", "confidence", "upper"} <= set(
        shown["bounds"][0]
    )
    assert {"rule", "available", "reason", "sensitivity", "false_alarms", "trials"} <= set(
        shown["oracles"][0]
    )


def test_one_run_gives_the_same_bytes_twice(incident, key):
    assert render_json(incident, key=key) == render_json(incident, key=key)


def test_no_secret_stands_in_the_object_unless_it_is_revealed(incident, records, key):
    secret = records["fill-0"].canaries[0]
    shown = render_json(incident, key=key).decode()
    assert secret.code_text not in shown
    assert secret.phrase not in shown
    assert key.decode() not in shown
    revealed = render_json(incident, reveal=True, key=key).decode()
    assert secret.code_text in revealed
    assert '"redacted": false' in revealed


def test_what_is_not_a_number_is_null(incident):
    finding = incident.findings[0]
    evidence = replace(
        finding.evidence, score=float("nan"), chance=float("inf"), details={"gap": float("-inf")}
    )
    run = replace(incident, findings=(replace(finding, evidence=evidence),))
    shown = report_json(run)["findings"][0]
    assert (shown["score"], shown["chance"], shown["details"]) == (None, None, {"gap": None})
    assert b"NaN" not in render_json(run)
    assert b"Infinity" not in render_json(run)

"""A trace holds what is known of one request, and no hostile character of it."""

import json
from pathlib import Path

import pytest

from kvaudit.cli.trace import _lines
from reports.redact import Redactor
from reports.trace_view import trace_json, trace_of

PAYLOADS = json.loads(
    (Path(__file__).parents[1] / "data" / "hostile_payloads.json").read_text(encoding="utf-8")
)


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, held in value.items():
            yield from strings(key)
            yield from strings(held)
    elif isinstance(value, list):
        for held in value:
            yield from strings(held)


def test_both_sides_the_reasons_and_the_reach_are_told(incident, records, key):
    made = trace_of(incident, records, "trigger-0", Redactor(key=key))
    by_rule = {held.rule: held for held in made.findings}
    assert set(by_rule) == {"KVA101", "KVA201", "KVA301", "KVA401"}
    first = by_rule["KVA101"]
    assert first.source.label == "Prompt of fill-0, tenant a"
    assert first.sink.label == "Answer to trigger-0, tenant b"
    assert {piece.mark for piece in first.sink.pieces} >= {"shared"}
    assert any("On the same answer: KVA201, KVA301, KVA401" in held for held in first.why)
    source = trace_of(incident, records, "fill-0", Redactor(key=key))
    assert not source.findings
    assert [held.request_id for held in source.reached] == ["trigger-0"]
    assert source.reached[0].rules == ("KVA101", "KVA201")


@pytest.mark.parametrize("reveal", [False, True])
def test_no_payload_reaches_a_terminal_or_a_program_raw(hostile_case, key, reveal):
    assert len(PAYLOADS) >= 60
    for payload in PAYLOADS:
        text = payload["text"] if isinstance(payload, dict) else payload
        run, held = hostile_case(text)
        for request_id in held:
            made = trace_of(run, held, request_id, Redactor(key=key, reveal=reveal))
            for line in _lines(made, 100, is_quiet=False):
                assert line.isprintable(), repr(line)
            shown = trace_json(made, reveal=reveal)
            assert json.dumps(shown, allow_nan=False).isprintable()
            for one in [shown["request"], *shown["reached"]]:
                one.pop("request_id")  # the log's own, which the JSON escapes
            for finding in shown["findings"]:
                for one in finding["elsewhere"]:
                    one.pop("request_id")
            assert all(one.isprintable() for one in strings(shown))

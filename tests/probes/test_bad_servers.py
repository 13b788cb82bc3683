"""Servers that misbehave: the run is inconclusive, says exactly why, and keeps every record."""

import json
import time

import pytest
from little_server import LittleServer, choice, planned, streaming, wave_of, whole

from kvaudit.cli.main import run
from kvaudit.config import AuditConfig
from kvaudit.detect.failures import failure_reasons
from kvaudit.records import Outcome, RequestRecord
from probes.client import http_target


def failed(**changes):
    return RequestRecord(**{"request_id": "r", "tenant": "a", "outcome": Outcome.ERROR} | changes)


@pytest.mark.parametrize(
    ("changes", "what", "cure"),
    [
        ({"outcome": Outcome.RATE_LIMITED, "status": 429, "error_type": "insufficient_quota"},
         "HTTP 429, insufficient_quota", "the quota is used up"),
        ({"outcome": Outcome.RATE_LIMITED, "status": 429}, "HTTP 429", "--max-rate"),
        ({"outcome": Outcome.TIMEOUT, "error_type": "first_output_timeout"},
         "first_output_timeout", "hung or overloaded"),
        ({"status": 200, "error_type": "html_body"}, "HTTP 200, html_body", "a web page"),
        ({"status": 200, "error_type": "overloaded"}, "overloaded", "inside a 200"),
        ({"error_type": "reset"}, "reset", "restarted"),
        ({"error_type": "refused"}, "refused", "still running"),
        ({"error_type": "tls"}, "tls", "SSL_CERT_FILE"),
        ({"status": 404, "error_type": "x", "error_message": "The model `m` does not exist"},
         "HTTP 404", "--model"),
        ({"outcome": Outcome.UNKNOWN}, "begun and not ended", "--retry-unknown"),
    ],
)  # fmt: skip
def test_each_failure_says_what_it_was_and_what_resolves_it(changes, what, cure):
    (reason,) = failure_reasons([failed(**changes)])
    assert what in reason
    assert cure in reason


def test_answers_refusals_and_planned_cuts_are_no_failures():
    fine = (Outcome.ANSWERED, Outcome.REFUSED, Outcome.CANCELLED)
    assert failure_reasons([failed(outcome=outcome) for outcome in fine]) == []


def audited(server, tmp_path, capsys, *flags):
    command = ["audit", server.url, "--scenario", "serial", "--trials", "2", "--tenants", "2"]
    status = run([*command, "--json", "--quiet", "--out", str(tmp_path / "run"), *flags])
    report = json.loads(capsys.readouterr().out)
    assert (status, report["verdict"]) == (3, "inconclusive")
    return " | ".join(report["reasons"]), report


def page_with_pool(asked, writer):
    """The pages of a server that tells its limits, so that no edge is searched."""
    if asked.path == "/v1/models":
        entry = {"id": "little", "owned_by": "sglang", "max_model_len": 700}
        whole(writer, {"data": [entry]})
    elif asked.path == "/server_info":
        whole(writer, {"max_total_num_tokens": 700, "max_req_input_len": 650, "page_size": 16})
    else:
        whole(writer, {"error": "not here"}, status=404)


async def page(asked, writer):
    page_with_pool(asked, writer)


def test_a_quota_that_ends_midway_is_told_with_what_resolves_it(tmp_path, capsys):
    seen = []

    async def answer(asked, writer):
        if asked.path == "/tokenize":
            whole(writer, {"error": "not here"}, status=404)
            return
        seen.append(asked)
        if len(seen) > 20:
            error = {"type": "insufficient_quota", "message": "You exceeded your current quota"}
            whole(writer, {"error": error}, status=429)
        else:
            whole(writer, choice(" fine", "stop") | {"usage": {"prompt_tokens": 9}})

    with LittleServer(answer, page=page) as server:
        reasons, report = audited(server, tmp_path, capsys)
    assert "HTTP 429, insufficient_quota" in reasons
    assert "the quota is used up" in reasons
    assert report["counts"]["outcome_answered"] == 20
    assert report["counts"]["requests"] == len(seen)


def test_a_server_that_ignores_stream_logprobs_and_usage_has_its_oracles_named(tmp_path, capsys):
    async def answer(asked, writer):
        whole(writer, choice(" fine", "stop"))

    with LittleServer(answer, page=page) as server:
        _, report = audited(server, tmp_path, capsys)
    oracles = {oracle["rule"]: oracle for oracle in report["oracles"]}
    for rule in ("KVA301", "KVA303", "KVA408"):
        assert not oracles[rule]["available"]
        assert oracles[rule]["reason"]


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"<html><body>Sign in</body></html>", "text/html", "a web page"),
        (json.dumps({"error": {"message": "engine is dead"}}).encode(), "application/json",
         "inside a 200"),
    ],
)  # fmt: skip
def test_a_200_that_is_no_answer_is_told(body, kind, said, tmp_path, capsys):
    async def answer(asked, writer):
        whole(writer, body, kind=kind)

    with LittleServer(answer, page=page) as server:
        reasons, report = audited(server, tmp_path, capsys)
    assert said in reasons
    assert report["counts"]["outcome_error"] == report["counts"]["requests"]


def test_no_more_are_in_flight_than_allowed():
    with LittleServer(streaming(b"data: [DONE]\n\n")) as server:
        target = http_target(AuditConfig(target=server.url, max_in_flight=2))
        try:
            list(target.send(wave_of(*(planned(f"r{n}") for n in range(8))), lambda _: None))
        finally:
            target.close()
        assert server.alive_max <= 2


def test_no_more_leave_in_a_minute_than_allowed():
    with LittleServer(streaming(b"data: [DONE]\n\n")) as server:
        target = http_target(AuditConfig(target=server.url, max_rate=600))
        try:
            begun = time.monotonic()
            list(target.send(wave_of(*(planned(f"r{n}") for n in range(6))), lambda _: None))
            took = time.monotonic() - begun
        finally:
            target.close()
    assert took >= 0.5

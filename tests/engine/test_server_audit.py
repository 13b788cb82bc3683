"""`kvaudit audit URL` and `kvaudit serve` from the command line."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from engine.config import EngineConfig, with_needs
from engine.faults import fault_plan
from engine.server import ReferenceServer
from kvaudit.cli.main import run
from kvaudit.cli.remote import wants_keys
from kvaudit.records import Outcome, RequestRecord

SERVE = ("serve", "--model", "tags", "--port", "0")
SUPPORTING = {"KVA301", "KVA302", "KVA303", "KVA401", "KVA407", "KVA408"}


@pytest.fixture
def start():
    running = []

    def start_one(fault=None):
        config, _ = with_needs(EngineConfig(model="tags"), fault_plan(fault))
        running.append(ReferenceServer(config, host="127.0.0.1", port=0, grace_s=1))
        running[-1].start()
        return running[-1]

    yield start_one
    for one in running:
        one.stop()


class StrictGate(http.server.BaseHTTPRequestHandler):
    """Lists its model to anyone and answers nobody."""

    def do_GET(self):
        is_list = self.path == "/v1/models"
        entry = {"id": "gated", "owned_by": "x", "max_model_len": 512}
        self._answer(200 if is_list else 404, {"data": [entry]} if is_list else {})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self._answer(401, {"error": {"message": "Incorrect API key", "type": "auth"}})

    def _answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def gate():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StrictGate)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def audit(url, folder, capsys, *arguments):
    status = run(["audit", url, "--quiet", "--json", "--out", str(folder), *arguments])
    out = capsys.readouterr().out
    return status, json.loads(out) if out else None


def test_a_dry_run_prints_the_plan_and_sends_no_prompt(start, tmp_path, capsys):
    server = start()
    status, plan = audit(server.url, tmp_path / "run", capsys, "--dry-run")
    assert status == 0
    assert plan["items"][0]["requests"] > 7
    assert server.thread.gauges.ended == ()


def test_a_server_that_is_not_there_is_inconclusive_and_leaves_no_folder(tmp_path, capsys):
    status = run(["audit", "http://127.0.0.1:1", "--out", str(tmp_path / "run")])
    assert status == 3
    assert "is the server running" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_not_served_is_told_with_those_that_are(start, tmp_path, capsys):
    status = run(["audit", start().url, "--model", "gpt-4", "--out", str(tmp_path / "run")])
    assert status == 3
    assert "it serves `tags`, `tags:a`, `tags:b`" in capsys.readouterr().err


def test_a_key_variable_that_is_not_set_is_a_usage_error(tmp_path, capsys):
    status = run(["audit", "http://127.0.0.1:1", "--api-key-env", "NO_SUCH_KEY"])
    assert status == 2
    assert "`NO_SUCH_KEY` is not set" in capsys.readouterr().err


def test_without_anybody_to_ask_a_far_server_is_not_sent_anything(tmp_path, capsys, monkeypatch):
    from kvaudit.cli.remote import confirm_cost
    from kvaudit.config import AuditConfig
    from kvaudit.errors import ConfigError

    far = AuditConfig(target="https://api.example.com")
    with pytest.raises(ConfigError, match="nobody is there to be asked") as caught:
        confirm_cost(far, says_yes=False)
    assert caught.value.exit_status == 2
    confirm_cost(far, says_yes=True)
    confirm_cost(AuditConfig(target="http://127.0.0.1:1"), says_yes=False)


def test_a_run_at_a_server_draws_texts_of_its_own_and_can_be_told_to_repeat_them():
    from kvaudit.cli.session import resumed_config, with_nonce
    from kvaudit.config import AuditConfig, audit_arguments
    from kvaudit.errors import ConfigError

    at_server = AuditConfig(target="http://127.0.0.1:1", seed=7)
    one, other = with_nonce(at_server), with_nonce(at_server)
    assert one.nonce
    assert one.nonce != other.nonce
    assert audit_arguments(one)[-2:] == ["--nonce", one.nonce]
    assert with_nonce(one) == one
    assert with_nonce(AuditConfig(seed=7)).nonce is None
    with pytest.raises(ConfigError, match="`nonce` is `a b`"):
        AuditConfig(nonce="a b").check()
    header = SimpleNamespace(config=asdict(one))
    assert resumed_config(header, {}) == one
    with pytest.raises(ConfigError, match="begun with `nonce`"):
        resumed_config(header, {"nonce": other.nonce})


def test_a_refused_key_is_noticed_and_an_ordinary_refusal_is_not():
    def record(status):
        return RequestRecord(request_id="r", tenant="a", status=status, outcome=Outcome.ERROR)

    assert "--api-key-env" in wants_keys([record(200), record(403)])
    assert wants_keys([record(200), record(400), record(429), record(None)]) is None


@pytest.mark.slow
def test_a_server_that_refuses_every_key_ends_inconclusive_asking_for_keys(gate, tmp_path, capsys):
    status, report = audit(gate, tmp_path / "run", capsys)
    assert status == 3
    assert report["verdict"] == "inconclusive"
    assert any("--api-key-env" in reason for reason in report["reasons"])
    assert report["findings"] == []
    assert "Bearer" not in (tmp_path / "run" / "journal.jsonl").read_text()


@pytest.mark.slow
def test_a_faulty_server_is_convicted_over_http(start, tmp_path, capsys):
    server = start("reject-not-propagated")
    status, report = audit(server.url, tmp_path / "run", capsys, "--trials", "8")
    rules = {finding["rule"] for finding in report["findings"]}
    assert (status, report["verdict"]) == (1, "contaminated")
    # Which of the leaked lines hold a whole canary depends on how the fills overlap over HTTP.
    assert rules & {"KVA101", "KVA102", "KVA201"}
    assert len(rules & SUPPORTING) >= 2
    token = re.compile(r"kvaudit-[A-Za-z0-9_-]{32}")
    for path in (tmp_path / "run").glob("*.*"):
        assert not token.search(path.read_bytes().decode("latin-1")), f"a credential in {path}"


@pytest.mark.slow
def test_a_healthy_server_is_clean_over_http(start, tmp_path, capsys):
    status, report = audit(start().url, tmp_path / "run", capsys, "--trials", "8")
    assert (status, report["verdict"], report["findings"]) == (0, "clean", [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "99999"], "is no port"),
        (["--fault", "reject-not-propagate"], "did you mean `reject-not-propagated`"),
        (["--fix", "dor"], "did you mean `door`"),
        (["--model", "copiar"], "did you mean `copier`"),
        (["--page-size", "0"], "above 0"),
        (["--prefill-pool-tokens", "1330"], "choose 1328 or 1344"),
        (["--out", "x"], "not built yet"),
        (["--device", "tpu"], "no device `tpu`"),
    ],
)
def test_serve_refuses_what_does_not_fit(arguments, message, capsys):
    assert run(["serve", "--port", "0", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_serve_refuses_a_deployment_that_its_start_check_finds_unsafe(capsys):
    assert run(["serve", "--port", "0", "--model", "tags", "--fix", "start-check"]) == 3
    assert "the prefill pool holds 1328 tokens" in capsys.readouterr().err


def test_serve_reads_the_settings_file_and_names_a_key_that_nobody_knows(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kvaudit.toml").write_text("[serve]\nprot = 1\n")
    assert run(["serve"]) == 2
    assert "did you mean `port`" in capsys.readouterr().err
    (tmp_path / "kvaudit.toml").write_text('[serve]\nport = "many"\n')
    assert run(["serve"]) == 2
    assert "a whole number" in capsys.readouterr().err


def serve_process(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "kvaudit.cli.main", *SERVE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_prints_its_url_and_stops_gracefully(number):
    process = serve_process("--fault", "prefix-hash-collision")
    try:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            assert response.status == 200
        process.send_signal(number)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (0, "")
    assert "needs the prefix cache: switched on" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_serve_as_json_tells_its_url_in_one_object():
    process = serve_process("--json", "--quiet")
    try:
        told = ""
        while not told.endswith("}\n") or told.count("{") > told.count("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            told += line
        process.terminate()
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    body = json.loads(told)
    assert (body["command"], body["items"][0]["model"]) == ("serve", "tags")
    assert errors == ""

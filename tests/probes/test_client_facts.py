"""What HttpTarget asks a server about, and how it says that it can't: facts, lengths, keys, TLS."""

import ssl
from pathlib import Path

import pytest
from little_server import LittleServer, answering, choice, planned, wave_of, whole

from kvaudit.config import AuditConfig
from kvaudit.errors import ConfigError, TargetError
from kvaudit.records import Outcome, Role
from probes.client import http_target

DATA = Path(__file__).parent.parent / "data" / "http"


def facts_from(page, *, answer=None, url=None, **changes):
    """Ask a little server with these pages for its facts."""
    with LittleServer(answer, page=page) as server:
        target = http_target(AuditConfig(target=url or server.url), **changes)
        try:
            return target.facts()
        finally:
            target.close()


def served(*names, owner="nobody"):
    async def page(asked, writer):
        if asked.path == "/v1/models":
            whole(writer, {"data": [{"id": name, "owned_by": owner} for name in names]})
        else:
            whole(writer, b"<html>not here</html>", status=404, kind="text/html")

    return page


def test_a_model_that_is_not_served_names_those_that_are():
    with pytest.raises(TargetError, match="does not serve a model `copier`") as caught:
        facts_from(served("llama", "qwen"), model="copier")
    assert caught.value.hint == "it serves `llama`, `qwen`"


def test_without_a_model_the_first_one_served_is_asked_for():
    facts = facts_from(served("llama", "qwen"))
    assert (facts.model, facts.models, facts.kind) == ("llama", ("llama", "qwen"), "unknown")
    assert facts.context_tokens is None
    assert facts.roles == ()


@pytest.mark.parametrize(
    ("status", "body", "message", "hint"),
    [
        (401, {"error": {"message": "no"}}, "asks for a key", "--api-key-env"),
        (403, {}, "asks for a key", "--api-key-env"),
        (404, {"detail": "Not Found"}, "answered HTTP 404", "with or without `/v1`"),
        (500, b"", "answered HTTP 500", "base URL"),
        (301, b"", "redirects", "points to"),
        (200, b"<!DOCTYPE html><p>Welcome", "a web page", "base URL"),
        (200, {"models": []}, "something else", "base URL"),
        (200, {"data": []}, "lists no model", "--model"),
    ],
)
def test_a_wrong_url_or_key_is_told_clearly(status, body, message, hint):
    async def page(asked, writer):
        whole(writer, body, status=status, headers=[("Location", "https://elsewhere/v1/models")])

    with pytest.raises(TargetError, match=message) as caught:
        facts_from(page)
    assert hint in caught.value.hint
    assert caught.value.exit_status == 3


def test_a_port_where_nobody_listens_is_told_clearly():
    with LittleServer(None) as server:
        url = server.url
    with pytest.raises(TargetError, match="can't reach") as caught:
        facts_from(None, url=url)
    assert "is the server running" in caught.value.hint


def test_lengths_come_from_the_servers_tokenizer():
    async def answer(asked, writer):
        assert asked.path == "/tokenize"
        words = asked.json["prompt"].split()
        whole(
            writer, {"count": len(words), "max_model_len": 512, "tokens": list(range(len(words)))}
        )

    with LittleServer(answer) as server:
        target = http_target(AuditConfig(target=server.url))
        assert target.count_tokens("one two three") == 3
        assert target.count_tokens("one two three") == 3
        target.close()
    assert sum(asked.path == "/tokenize" for asked in server.asked) == 1, "asked once, then kept"


def test_without_a_tokenizer_lengths_are_fitted_to_calibration_requests_alone():
    async def answer(asked, writer):
        if asked.path == "/tokenize":
            whole(writer, {"detail": "Not Found"}, status=404)
            return
        # 3 tokens for the frame and one for 4 characters; the trigger's count is a lie.
        tokens = 3 + len(asked.json["prompt"]) // 4 if len(asked.json["prompt"]) < 900 else 1
        whole(writer, choice("x", "stop", usage={"prompt_tokens": tokens, "completion_tokens": 1}))

    with LittleServer(answer) as server:
        target = http_target(AuditConfig(target=server.url))
        assert target.count_tokens("x" * 400) is None
        sent = [planned(f"c{n}", text="x" * n, role=Role.CALIBRATION) for n in (40, 200, 360)]
        sent.append(planned("t", text="x" * 1000, role=Role.TRIGGER))
        list(target.send(wave_of(*sent), lambda _: None))
        assert target.count_tokens("x" * 400) == 103
        assert target.count_tokens("x" * 4000) == 1003
        target.close()
    assert sum(asked.path == "/tokenize" for asked in server.asked) == 1, "a 404 is not asked again"


def test_a_private_certificate_authority_must_be_named():
    pair = DATA / "loopback.pem"  # self-signed for localhost and 127.0.0.1, key included
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    with LittleServer(answering(choice("x", "stop")), tls=context) as server:
        url = server.url.replace("http:", "https:")
        with pytest.raises(TargetError, match="tls") as caught:
            facts_from(None, url=url)
        assert "SSL_CERT_FILE" in caught.value.hint
        target = http_target(AuditConfig(target=url), ca_file=pair)
        (reply,) = target.send(wave_of(planned()), lambda _: None)
        target.close()
    assert reply.outcome is Outcome.ANSWERED


def test_a_file_that_holds_no_certificates_is_told_before_anything_is_sent():
    with pytest.raises(ConfigError, match="can't read certificates"):
        http_target(AuditConfig(target="https://127.0.0.1:1"), ca_file=DATA / "nothing.pem")


def test_a_proxy_from_the_environment_is_used_but_not_for_the_loopback(monkeypatch):
    with LittleServer(answering(choice("x", "stop"))) as proxy, LittleServer(None) as server:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        far = http_target(AuditConfig(target="http://server.invalid"))
        with pytest.raises(TargetError):
            far.facts()  # the little proxy knows no such page
        far.close()
        near = http_target(AuditConfig(target=server.url))
        assert near.facts().model == "little"
        near.close()
    assert [asked.path for asked in proxy.asked] == ["http://server.invalid/v1/models"]


@pytest.mark.parametrize(
    ("names", "values", "message"),
    [
        (["A", "B", "C"], {"A": "1", "B": "2", "C": "3"}, "3 keys for 2 tenants"),
        (["A", "B"], {"A": "1"}, "`B` is not set"),
        (["A", "B"], {"A": "1", "B": "1"}, "hold the same key"),
        (["A"], {"A": "schlüssel"}, "no header can carry"),
    ],
)
def test_keys_that_do_not_fit_are_told_without_showing_them(names, values, message):
    config = AuditConfig(target="http://127.0.0.1:1", tenants=2)
    with pytest.raises(ConfigError, match=message) as caught:
        http_target(config, api_key_env=names, environment=values)
    assert "schlüssel" not in f"{caught.value.message} {caught.value.hint}"

"""`kvaudit preflight URL`: running servers as sources, their own pages and nothing else."""

import json
from dataclasses import replace

from little_server import LittleServer, whole

from kvaudit.cli.main import run


def sglang(mode, pool, *, version="0.5.19"):
    """Pages of one worker of a disaggregated SGLang deployment."""
    limit = min(pool, 1_048_576) - 6
    pages = {
        "/v1/models": {"data": [{"id": "glm", "owned_by": "sglang", "max_model_len": 1_048_576}]},
        "/server_info": {
            "version": version, "model_path": "glm", "disaggregation_mode": mode, "page_size": 64,
            "context_length": None, "disable_radix_cache": False,
            "disaggregation_transfer_backend": "mooncake",
            "scheduler_info": {"max_total_num_tokens": pool, "max_req_input_len": limit},
        },
    }  # fmt: skip

    async def page(asked, writer):
        body = pages.get(asked.path)
        whole(writer, body or {"detail": "Not Found"}, status=200 if body else 404)

    return page


def judged(*urls, tmp_path, capsys):
    status = run(["preflight", *urls, "--json", "--quiet", "--out", str(tmp_path / "run")])
    return status, json.loads(capsys.readouterr().out)


def test_the_pool_below_the_context_is_found_on_two_running_workers(tmp_path, capsys):
    with (
        LittleServer(None, page=sglang("prefill", 681_280)) as prefill,
        LittleServer(None, page=sglang("decode", 2_000_000)) as decode,
    ):
        status, report = judged(prefill.url, decode.url, tmp_path=tmp_path, capsys=capsys)
        methods = {asked.method for server in (prefill, decode) for asked in server.asked}
    assert status == 1
    assert report["verdict"] == "at_risk"
    assert "KVA701" in {finding["rule"] for finding in report["findings"]}
    assert methods == {"GET"}, "pages are read, and nothing else is sent"


def test_workers_that_hold_the_context_are_not_at_that_risk(tmp_path, capsys):
    with (
        LittleServer(None, page=sglang("prefill", 2_100_000, version="0.5.23")) as prefill,
        LittleServer(None, page=sglang("decode", 2_000_000, version="0.5.23")) as decode,
    ):
        _, report = judged(prefill.url, decode.url, tmp_path=tmp_path, capsys=capsys)
    assert "KVA701" not in {finding["rule"] for finding in report["findings"]}


def test_a_gateway_that_tells_nothing_is_told_so(tmp_path, capsys):
    async def page(asked, writer):
        if asked.path == "/v1/models":
            whole(writer, {"data": [{"id": "m", "owned_by": "somebody"}]})
        else:
            whole(writer, b"<html>", status=404, kind="text/html")

    with LittleServer(None, page=page) as server:
        assert run(["preflight", server.url, "--out", str(tmp_path / "run")]) == 2
    assert "tells nothing of the engine behind it" in capsys.readouterr().err


def test_an_older_sglang_is_asked_by_its_older_page(tmp_path, capsys):
    new = sglang("prefill", 681_280)

    async def page(asked, writer):
        if asked.path == "/server_info":
            whole(writer, {"detail": "Not Found"}, status=404)
            return
        is_older = asked.path == "/get_server_info"
        await new(replace(asked, path="/server_info") if is_older else asked, writer)

    with LittleServer(None, page=page) as server:
        _, report = judged(server.url, tmp_path=tmp_path, capsys=capsys)
        assert {asked.path for asked in server.asked} >= {"/get_server_info", "/v1/models"}
    (role,) = report["target"]["roles"]
    assert (role["role"], role["pool_tokens"]) == ("prefill", 681_280)

"""A reference server of one's own, and plain urllib to call it."""

import json
import time
import urllib.error
import urllib.request

from engine.config import EngineConfig, with_needs
from engine.faults import fault_plan
from engine.server import ReferenceServer

PROMPT = "the code is KX42. again: the code is "
# Room for a stream that outlasts any test.
LONG = {"context_tokens": 65536, "prefill_pool_tokens": 65536, "decode_pool_tokens": 131_072}


def build(fault=None, fixes=(), **changes):
    sized = EngineConfig(**({"model": "tags"} | changes))
    config, _ = with_needs(sized, fault_plan(fault, fixes))
    return ReferenceServer(config, host="127.0.0.1", port=0, grace_s=1)


def call(server, path, body=None, *, key=None, request_id=None, headers=()):
    """Return status, headers and decoded body of one plain request."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data)
    request.add_header("Content-Type", "application/json")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    if request_id:
        request.add_header("X-Request-Id", request_id)
    for name, value in headers:
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            status, got, raw = response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        status, got, raw = error.code, error.headers, error.read()
    try:
        return status, got, json.loads(raw)
    except ValueError:
        return status, got, raw.decode()


def complete(server, prompt=PROMPT, *, key=None, request_id=None, path="/v1/completions", **fields):
    body = {"prompt": prompt, "max_tokens": 6, "temperature": 0} | fields
    return call(server, path, body, key=key, request_id=request_id)


def chunks_of(text):
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event[:5] == "data:"]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


def free_pages(server):
    """Return pages that are neither free nor in the prefix cache, once the engine is at rest."""
    deadline = time.monotonic() + 10
    while server.thread.gauges.requests_alive or server.thread.engine.has_work:
        assert time.monotonic() < deadline, "the engine does not come to rest"
        time.sleep(0.005)
    server.thread.engine.check_integrity()
    prefill, decode = server.thread.engine.roles
    cached = server.thread.engine.prefill.prefix.num_pages
    return (
        prefill.pool.num_pages - prefill.pool.num_free - cached,
        decode.pool.num_pages - decode.pool.num_free,
    )

"""What an HTTP server says of itself: its own pages fetched, never one token spent.

Reads only: no page that changes the server's state is called.
"""

import asyncio
import json

import httpx

from kvaudit.errors import TargetError
from kvaudit.findings import Json
from kvaudit.serverfacts import ServerAnswers, ServerFacts, facts_of
from probes.address import ServerAddress
from probes.failure import connection_problem

PAGE_BYTES_MAX = 8 * 1024 * 1024
PAGE_TIMEOUT_S = 15.0
NAMES_SHOWN = 12
# Read-only, and none of them shows anybody's prompt, as llama.cpp's `/slots` may.
PAGES = {
    "version": "version",
    "server_info": "server_info",
    "info": "info",
    "props": "props",
    "ollama_version": "api/version",
    "ollama_running": "api/ps",
    "metrics": "metrics",
}

_CONNECTION_HINTS = {
    "refused": "is the server running, and is the port right?",
    "dns": "check the host name",
    "tls": "for a private certificate authority set `SSL_CERT_FILE` to its file;"
    " for a server without TLS write `http://`",
    "proxy": "check `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY`",
    "connect_timeout": "is the host reachable from here, and is a proxy needed?",
    "broken_response": "does the server speak HTTP on this port, with TLS or without?",
}


async def ask_facts(
    client: httpx.AsyncClient, address: ServerAddress, *, bearer: str, model: str | None
) -> ServerFacts:
    """Return what the server says of itself.

    Args:
        client: Sends the questions.
        address: The server.
        bearer: Credential of one tenant.
        model: Model that was asked for; None = the first that is served.

    Raises:
        TargetError: Nobody answers there, the key is not taken, it is no OpenAI-compatible API, or
            the model is not served.
    """
    answers = await ask_answers(client, address, bearer=bearer, may_miss=model is not None)
    facts = facts_of(answers, model=model)
    if facts.models and facts.model not in facts.models:
        names = ", ".join(f"`{name}`" for name in facts.models[:NAMES_SHOWN])
        raise TargetError(
            f"`{address.api}` does not serve a model `{model}`", hint=f"it serves {names}"
        )
    if facts.model is None:
        raise TargetError(
            f"`{address.api}/models` lists no model", hint="name the model with `--model`"
        )
    return facts


async def ask_answers(
    client: httpx.AsyncClient, address: ServerAddress, *, bearer: str, may_miss: bool
) -> ServerAnswers:
    """Return the server's own pages, those that it has.

    Args:
        client: Sends the questions.
        address: The server.
        bearer: Credential of one tenant.
        may_miss: Whether a server without a list of models will do.

    Raises:
        TargetError: Nobody answers there, the key is not taken, or it is no OpenAI-compatible API.
    """
    headers = {"Authorization": f"Bearer {bearer}"}
    models = await _ask_models(client, address, headers=headers, may_miss=may_miss)
    texts = await asyncio.gather(
        *(_ask_page(client, f"{address.root}/{path}", headers) for path in PAGES.values())
    )
    pages = dict(zip(PAGES, texts, strict=True))
    metrics = pages.pop("metrics")
    decoded = {name: _decoded(text) for name, text in pages.items()}
    if not isinstance(decoded["server_info"], dict):  # SGLang's older name for it
        older = await _ask_page(client, f"{address.root}/get_server_info", headers)
        decoded["server_info"] = _decoded(older)
    return ServerAnswers(models=models, metrics=metrics, **decoded)


async def ask_token_ids(
    client: httpx.AsyncClient, url: str, *, body: dict[str, Json], bearer: str
) -> tuple[int, list[int] | None] | None:
    """Return length and ids of a text by the server's `/tokenize`; None if it has none."""
    said = await ask_json(client, url, body=body, bearer=bearer, timeout_s=PAGE_TIMEOUT_S)
    if not isinstance(said, dict):
        return None
    tokens = said.get("tokens")
    ids = tokens if isinstance(tokens, list) else None
    if ids is not None and not all(type(item) is int for item in ids):
        ids = None
    count = said.get("count", len(tokens) if isinstance(tokens, list) else None)
    return (count, ids) if type(count) is int and count >= 0 else None


async def ask_json(
    client: httpx.AsyncClient, url: str, *, body: dict[str, Json], bearer: str, timeout_s: float
) -> Json:
    """Return the decoded answer to a POST; None if there is none, or none with a 2xx."""
    headers = {"Authorization": f"Bearer {bearer}"}
    try:
        async with asyncio.timeout(timeout_s):
            response = await client.post(url, json=body, headers=headers)
    except (httpx.HTTPError, TimeoutError, OSError):
        return None
    return _decoded(response.text) if response.is_success else None


async def _ask_models(
    client: httpx.AsyncClient, address: ServerAddress, *, headers: dict[str, str], may_miss: bool
) -> Json:
    url = f"{address.api}/models"
    try:
        async with asyncio.timeout(PAGE_TIMEOUT_S):
            response = await client.get(url, headers=headers)
    except TimeoutError:
        raise TargetError(
            f"`{url}` gave no answer within {PAGE_TIMEOUT_S:.0f} s", hint="is the server hung?"
        ) from None
    except (httpx.HTTPError, OSError) as error:
        problem = connection_problem(error)
        raise TargetError(
            f"can't reach `{address.root}` ({problem}): {str(error) or type(error).__name__}",
            hint=_CONNECTION_HINTS.get(problem),
        ) from None
    if response.status_code == 404 and may_miss:
        return None
    _check_models_status(response, url)
    models = _decoded(response.text)
    if not isinstance(models, dict) or not isinstance(models.get("data"), list):
        kind = "a web page" if response.text.lstrip()[:1] == "<" else "something else"
        raise TargetError(
            f"`{url}` answered {kind} where an OpenAI-compatible server lists its models",
            hint="give the base URL of the API, such as `http://127.0.0.1:8000`",
        )
    return models


def _check_models_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in (401, 403):
        raise TargetError(
            f"`{url}` asks for a key (HTTP {status})",
            hint="name environment variables that hold one: `--api-key-env NAME`, one per tenant",
        )
    if response.is_redirect:
        location = response.headers.get("location", "")
        raise TargetError(
            f"`{url}` redirects (HTTP {status})", hint=f"give the URL it points to: `{location}`"
        )
    if not response.is_success:
        raise TargetError(
            f"`{url}` answered HTTP {status}",
            hint="give the base URL of an OpenAI-compatible API, with or without `/v1`",
        )


async def _ask_page(client: httpx.AsyncClient, url: str, headers: dict[str, str]) -> str | None:
    """Return a page's text; None where there is none, which is no fault of the server."""
    text = bytearray()
    try:
        async with (
            asyncio.timeout(PAGE_TIMEOUT_S),
            client.stream("GET", url, headers=headers) as response,
        ):
            if not response.is_success:
                return None
            async for piece in response.aiter_bytes():
                text += piece
                if len(text) > PAGE_BYTES_MAX:
                    return None
    except (httpx.HTTPError, TimeoutError, OSError):
        return None
    return text.decode("utf-8", errors="replace")


def _decoded(text: str | None) -> Json:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None

"""What kind of failure it was: a status, an error body or a broken connection -> Outcome.

Only a refusal that names the limit or the failed transfer counts as examined: a server that answers
400 to everything has refused nothing, and must not read as clean.
"""

import re
import ssl
from typing import NamedTuple

import httpx

from kvaudit.records import Outcome
from probes.answer import ServerError

MESSAGE_CHARACTERS_MAX = 2000

# Words with which servers name a length limit or a transfer that did not come.
_LIMIT = re.compile(
    r"context[ _-]?(length|window|size)|too[ _]long|too[ _]large|max_(model|req|input|total)"
    r"|longer than|(maximum|exceed).{0,60}(length|token|context|input|pool|capacity)"
    r"|token limit|input length|length limit|reduce the length",
    re.IGNORECASE,
)
_TRANSFER = re.compile(
    r"transfer|bootstrap|handoff|hand-off|kv[ _-]?(cache|checksum|coverage|poll)|checksum"
    r"|prefill|decode instance|disaggregat",
    re.IGNORECASE,
)
_OTHER_CAUSE = re.compile(
    r"api.?key|unauthori[sz]ed|model.{0,40}(not (found|exist)|does not exist)"
    r"|unknown (parameter|field)|unsupported|unrecognized|extra inputs|json",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^>]{0,1000}>", flags=re.DOTALL | re.IGNORECASE)
_NOT_A_REFUSAL = frozenset({401, 403, 404, 405, 407, 408, 429})


class Failure(NamedTuple):
    """How a request failed.

    Attributes:
        outcome: Its kind.
        error_type: Short name, of the server or of ours.
        message: In the server's words where there are any.
    """

    outcome: Outcome
    error_type: str
    message: str


def failure_of_status(status: int, error: ServerError | None, body: str) -> Failure:
    """Return the failure that an HTTP error status with its body means."""
    message = (error.message if error else "") or _readable(body) or f"HTTP {status}"
    named = " ".join((error.type, error.code, message)) if error else message
    kind = (error.type or error.code) if error else ""
    return Failure(_outcome(status, named), kind or _kind(status, body), _cut(message))


def failure_of_error(error: ServerError, *, has_output: bool) -> Failure:
    """Return the failure that an error inside a 200 means; after output it is no refusal."""
    named = " ".join((error.type, error.code, error.message))
    status = error.status if error.status is not None else 500
    outcome = _outcome(status, named)
    if has_output and outcome is Outcome.REFUSED:
        outcome = Outcome.ERROR
    kind = error.type or error.code or "error_in_200"
    return Failure(outcome, kind, _cut(error.message or "error without a message"))


def failure_of_exception(error: Exception) -> Failure:
    """Return the failure that a broken connection means."""
    kind = connection_problem(error)
    outcome = Outcome.TIMEOUT if kind.endswith("timeout") else Outcome.ERROR
    return Failure(outcome, kind, _cut(str(error) or type(error).__name__))


def connection_problem(error: Exception) -> str:
    """Return a short name for what broke: `tls`, `dns`, `refused`, `proxy`, `reset`, ..."""
    causes = _causes(error)
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return "tls"
    if isinstance(error, httpx.ProxyError):
        return "proxy"
    if isinstance(error, httpx.TimeoutException):
        return "connect_timeout" if isinstance(error, httpx.ConnectTimeout) else "read_timeout"
    if any(type(cause).__name__ == "gaierror" for cause in causes):
        return "dns"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "refused"
    if isinstance(error, httpx.ConnectError):
        return "connect"
    if isinstance(error, httpx.RemoteProtocolError):
        return "broken_response"
    if isinstance(error, httpx.NetworkError):
        return "reset"
    return "protocol"


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and what lies under it, groups of parallel attempts included."""
    found: list[BaseException] = []
    waiting = [error]
    while waiting and len(found) < 32:
        current = waiting.pop()
        if current in found:
            continue
        found.append(current)
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(current.exceptions)
        waiting.extend(cause for cause in (current.__cause__, current.__context__) if cause)
    return found


def _outcome(status: int, named: str) -> Outcome:
    if status == 429:
        return Outcome.RATE_LIMITED
    if status == 413:
        return Outcome.REFUSED
    if status == 504 or status == 408:
        return Outcome.REFUSED if _TRANSFER.search(named) else Outcome.TIMEOUT
    if status in _NOT_A_REFUSAL or _OTHER_CAUSE.search(named):
        return Outcome.ERROR
    names_limit = _LIMIT.search(named) or (status >= 500 and _TRANSFER.search(named))
    return Outcome.REFUSED if names_limit else Outcome.ERROR


def _kind(status: int, body: str) -> str:
    if body.lstrip()[:1] == "<":
        return "html_body"
    return {401: "authentication", 403: "permission", 404: "not_found"}.get(
        status, f"http_{status}"
    )


def _readable(body: str) -> str:
    """Return a body as one line of text, markup taken out."""
    text = _MARKUP.sub(" ", body[:4000])
    return " ".join(text.split())


def _cut(message: str) -> str:
    if len(message) <= MESSAGE_CHARACTERS_MAX:
        return message
    return message[: MESSAGE_CHARACTERS_MAX - 1] + "…"

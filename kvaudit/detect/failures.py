"""Why requests failed, in words, and what would resolve it."""

import re
from collections import Counter
from collections.abc import Iterable

from kvaudit.records import Outcome, RequestRecord

KINDS_TOLD = 3
MESSAGE_CHARACTERS = 120
_QUOTA = re.compile(r"quota|billing|credit|balance|spend", re.IGNORECASE)
_MODEL = re.compile(
    r"model.{0,60}(not (found|exist|served)|does not exist)|unknown model", re.IGNORECASE
)

_BROKEN = "the server restarted, scaled, or a proxy cut it: run again when it is steady"
_BY_TYPE = {
    "html_body": "a web page came back: a proxy, a login or another service answers there",
    "no_answer": "a 200 without an answer in it: is this the API's base URL?",
    "redirect": "the server redirects: give the URL that it points to",
    "refused": "nobody listens there any more: is the server still running?",
    "reset": _BROKEN,
    "broken_response": _BROKEN,
    "broken_stream": _BROKEN,
    "broken_chunk": "a chunk of the stream is no JSON: a proxy may rewrite it",
    "connect": "the server can't be reached: is it still running?",
    "tls": "TLS failed: set `SSL_CERT_FILE` for a private certificate authority",
    "dns": "the host name is not known: check the URL",
    "proxy": "the proxy failed: check `HTTPS_PROXY` and `NO_PROXY`",
    "answer_too_large": "the answer did not end: is `max_tokens` ignored?",
    "aborted": "the server gave the request up: its log says why",
    "not_found": "no such endpoint or model: check the URL and `--model`",
    "authentication": "the key is not taken: `--api-key-env`",
    "permission": "the key may not do this: `--api-key-env`",
}


def failure_reasons(records: Iterable[RequestRecord]) -> list[str]:
    """Return the commonest reasons for which requests could not be examined, most frequent first.

    A request that the plan cut is no failure.
    """
    failed = [
        record
        for record in records
        if record.outcome in (Outcome.ERROR, Outcome.RATE_LIMITED, Outcome.TIMEOUT, Outcome.UNKNOWN)
    ]
    counted = Counter((_what(record), _cure(record)) for record in failed)
    return [
        f"{count} request{'s' * (count != 1)} failed ({what}): {cure}"
        for (what, cure), count in counted.most_common(KINDS_TOLD)
    ]


def _what(record: RequestRecord) -> str:
    if record.outcome is Outcome.UNKNOWN:
        return "begun and not ended"
    parts = [f"HTTP {record.status}"] if record.status is not None else []
    if record.error_type and record.error_type != f"http_{record.status}":
        parts.append(record.error_type[:MESSAGE_CHARACTERS])
    return ", ".join(parts) or record.outcome.value


def _cure(record: RequestRecord) -> str:
    named = f"{record.error_type} {record.error_message}"
    if record.outcome is Outcome.UNKNOWN:
        return "the run was interrupted: `--resume --retry-unknown` sends them again"
    if record.outcome is Outcome.RATE_LIMITED or record.status == 402:
        if _QUOTA.search(named):
            return "the quota is used up: raise it, then run again"
        return "the server limits the rate: lower it with `--max-rate` or `--max-in-flight`"
    if _MODEL.search(named):
        return "the model is not served: `--model` names one that is"
    if record.outcome is Outcome.TIMEOUT:
        return "no answer in time: is the server hung or overloaded?"
    known = _BY_TYPE.get(record.error_type or "")
    if known is not None:
        return known
    if record.status == 200:
        return "an error came inside a 200: the server's log says why"
    return "the server's log says why"

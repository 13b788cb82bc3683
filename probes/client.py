"""HttpTarget: any OpenAI-compatible server, as a Target.

The network runs in a thread of its own, so that a reply's times do not depend on what the audit
does with the reply before it; whatever the audit hands in is called in the audit's own thread.
"""

import asyncio
import hashlib
import json
import os
import queue
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from kvaudit import __version__
from kvaudit.clock import Clock, WallClock
from kvaudit.config import AuditConfig
from kvaudit.errors import ConfigError
from kvaudit.findings import Json
from kvaudit.records import Outcome, Role
from kvaudit.serverfacts import ServerAnswers, ServerFacts
from kvaudit.target import PlannedRequest, Reply, Wave
from probes.address import ServerAddress, server_address
from probes.calibration import LengthCalibration
from probes.credentials import Credentials, credentials_from
from probes.exchange import Exchange, HttpLimits
from probes.geometry import geometry_of
from probes.payload import payload_of
from probes.questions import ask_answers, ask_facts, ask_json, ask_token_ids
from probes.replay import CAN_SCORE, scores_of, scoring_body, tokenize_body

COUNTS_KEPT = 4096
STOP_TIMEOUT_S = 10.0
# Below the 5 s after which common servers drop an idle connection: a request must never meet one
# that is just being closed, since it is not sent twice.
KEEPALIVE_S = 2.0

_Result = TypeVar("_Result")


def http_target(
    config: AuditConfig,
    *,
    model: str | None = None,
    api_key_env: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    limits: HttpLimits | None = None,
    clock: Clock | None = None,
    ca_file: Path | None = None,
) -> "HttpTarget":
    """Return the Target of `config.target`; nothing is sent yet.

    Args:
        config: The audit; its `target` is a base URL.
        model: Model to ask for; None = the first that the server lists.
        api_key_env: Environment variables that hold the tenants' keys; none = minted for the run.
        environment: Where they are looked up; None = the process's own.
        limits: Waiting times and sizes.
        clock: Where times come from.
        ca_file: Certificates to trust; None = `SSL_CERT_FILE`, `SSL_CERT_DIR` or the built-in ones.

    Raises:
        ConfigError: The URL, a key or the certificate file does not fit.
    """
    surroundings = os.environ if environment is None else environment
    return HttpTarget(
        server_address(config.target),
        credentials=credentials_from(api_key_env, surroundings, tenants=config.tenants),
        model=model,
        limits=limits
        or HttpLimits(in_flight_max=config.max_in_flight, per_minute_max=config.max_rate),
        clock=clock or WallClock(),
        ca_file=ca_file,
    )


@dataclass(frozen=True, slots=True)
class _Departure:
    """A request that asks to leave."""

    planned: PlannedRequest
    loop: asyncio.AbstractEventLoop
    gate: asyncio.Event

    def permit(self) -> None:
        """Let it leave; called from the audit's thread."""
        self.loop.call_soon_threadsafe(self.gate.set)


class HttpTarget:
    """A server behind a base URL.

    Each wave goes out on new connections; within a wave they are kept and reused. A request is sent
    once: what came back first is the reply, and 429s and broken connections are replies too.

    Attributes:
        address: Where the server is.
        credentials: The tenants' keys.
    """

    def __init__(
        self,
        address: ServerAddress,
        *,
        credentials: Credentials,
        model: str | None = None,
        limits: HttpLimits | None = None,
        clock: Clock | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self.address = address
        self.credentials = credentials
        self._model = model
        self._limits = limits or HttpLimits()
        self._clock = clock or WallClock()
        self._tls = _tls_context(address, ca_file)
        self._facts: ServerFacts | None = None
        self._next_turn = 0.0  # of the loop's clock; used in the network's thread alone
        self._counts: dict[bytes, int] = {}
        self._has_tokenizer: bool | None = None
        self._calibration = LengthCalibration()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._asker: httpx.AsyncClient | None = None

    def facts(self) -> ServerFacts:
        """Return what the server says of itself, asked once; raises TargetError."""
        if self._facts is None:
            self._facts = self._run(self._ask_facts())
        return self._facts

    def answers(self) -> ServerAnswers:
        """Return the server's own pages as they are; raises TargetError."""
        return self._run(
            ask_answers(
                self._asking_client(), self.address, bearer=self.credentials.any(), may_miss=True
            )
        )

    def count_tokens(self, text: str) -> int | None:
        """Return the length of a plain prompt: by `/tokenize`, else estimated from usage.

        The estimate needs answered calibration requests; before them it is None.
        """
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest not in self._counts:
            said = self.tokenize(text)
            if said is None:
                return self._calibration.estimate(text)
            if len(self._counts) >= COUNTS_KEPT:
                self._counts.pop(next(iter(self._counts)))
            self._counts[digest] = said[0]
        return self._counts[digest]

    def tokenize(self, text: str) -> tuple[int, list[int] | None] | None:
        """Return length and ids of a plain prompt by `/tokenize`; None if the server has none."""
        if self._has_tokenizer is False:
            return None
        facts = self.facts()
        body: dict[str, Any] = {"model": facts.model, "prompt": text}
        if facts.kind == "llama.cpp":
            body = {"content": text, "add_special": True}
        said = self._run(self._ask_tokens(body))
        if self._has_tokenizer is None:
            self._has_tokenizer = said is not None
        return said

    def replay_obstacle(self, planned: PlannedRequest) -> str | None:
        """Return why this request can't be replayed at this server; None if it is worth trying.

        A prompt over the limit is never sent once more: a server that answers it wrongly would
        score it wrongly too.
        """
        facts = self.facts()
        if planned.is_responses:
            return "answers of the Responses API carry no token ids"
        if facts.kind not in CAN_SCORE:
            return "the server can't score given tokens past its cache"
        geometry = geometry_of(facts, answer_tokens=0)
        if planned.prompt_tokens_sent is None or planned.prompt_tokens_sent > geometry.limit:
            return "a prompt over the limit can't be scored by the same server"
        return None

    def replay_logprobs(
        self, planned: PlannedRequest, output_token_ids: Sequence[int]
    ) -> list[float] | None:
        """Return the log-probability of each given token under the prompt really sent.

        Scored by the server past its prefix cache, with the tenant's own credential. None where the
        server can't score token ids, or refuses these; it is asked once.
        """
        facts = self.facts()
        if facts.kind not in CAN_SCORE or not output_token_ids:
            return None
        model = facts.model or ""
        bearer = self.credentials.of(planned.tenant)
        said = self._run(self._ask_tokens(tokenize_body(planned, model=model)))
        if said is None or said[1] is None:
            return None
        ids = [*said[1], *output_token_ids]
        body = scoring_body(planned, ids, kind=facts.kind, model=model)
        scored = self._run(self._ask_scores(body, bearer))
        return scores_of(scored, ids, last=len(output_token_ids))

    def send(self, wave: Wave, departing: Callable[[PlannedRequest], None]) -> Iterator[Reply]:
        """Send one wave and yield one Reply for each request, in the order in which they end."""
        facts = self.facts()
        inbox: queue.SimpleQueue[_Departure | Reply | BaseException] = queue.SimpleQueue()
        over = threading.Event()
        sending = asyncio.run_coroutine_threadsafe(
            self._send_wave(wave, facts, inbox, over), self._running_loop()
        )
        planned_by_id = {planned.request_id: planned for planned in wave.requests}
        assert len(planned_by_id) == len(wave.requests), "two requests with one id in a wave"
        waiting = len(wave.requests)
        try:
            while waiting:
                item = inbox.get()
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, _Departure):
                    departing(item.planned)
                    item.permit()
                    continue
                waiting -= 1
                self._learn(planned_by_id[item.request_id], item)
                yield item
        finally:
            if waiting:  # cut short: what is in flight is dropped, and its connections closed
                sending.cancel()
            over.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Close all connections and stop the network's thread."""
        if self._loop is None or self._thread is None:
            return
        if self._asker is not None:
            self._run(self._asker.aclose())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        self._loop.close()
        self._loop = self._thread = self._asker = None

    async def _send_wave(
        self,
        wave: Wave,
        facts: ServerFacts,
        inbox: "queue.SimpleQueue[_Departure | Reply | BaseException]",
        over: threading.Event,
    ) -> None:
        together = wave.concurrency or max(1, len(wave.requests))
        places = asyncio.Semaphore(min(together, self._limits.in_flight_max or together))
        try:
            async with self._new_client() as client, asyncio.TaskGroup() as group:
                for planned in wave.requests:
                    group.create_task(self._send_one(client, planned, facts, inbox, places))
        except BaseException as error:
            inbox.put(error)
            raise
        finally:
            over.set()

    async def _send_one(
        self,
        client: httpx.AsyncClient,
        planned: PlannedRequest,
        facts: ServerFacts,
        inbox: "queue.SimpleQueue[_Departure | Reply | BaseException]",
        places: asyncio.Semaphore,
    ) -> None:
        async with places:
            request = self._request(client, planned, facts)
            gate = asyncio.Event()
            loop = asyncio.get_running_loop()
            inbox.put(_Departure(planned, loop, gate))
            await gate.wait()
            await self._turn()
            exchange = Exchange(planned, limits=self._limits, clock=self._clock)
            reply = await exchange.run(client, request)
            inbox.put(self._scrubbed(reply))

    async def _turn(self) -> None:
        """Wait until the rate allows one more to leave."""
        if self._limits.per_minute_max is None:
            return
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next_turn)
        self._next_turn = turn + 60 / self._limits.per_minute_max
        await asyncio.sleep(turn - now)

    def _request(
        self, client: httpx.AsyncClient, planned: PlannedRequest, facts: ServerFacts
    ) -> httpx.Request:
        return client.build_request(
            "POST",
            f"{self.address.root}{planned.endpoint}",
            # Escaped to ASCII, so that even half a surrogate pair can be sent.
            content=json.dumps(payload_of(planned, kind=facts.kind, model=facts.model or "")),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {self.credentials.of(planned.tenant)}",
                "X-Request-Id": planned.request_id,
            },
        )

    def _new_client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            verify=self._tls,
            timeout=None,  # noqa: S113 - an Exchange has its own alarm, with a name for each stage
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEPALIVE_S
            ),
            headers={"User-Agent": f"kvaudit/{__version__}", "Accept-Encoding": "identity"},
            follow_redirects=False,
            # A proxy can't reach this machine's own loopback.
            trust_env=not self.address.is_loopback,
        )

    def _learn(self, planned: PlannedRequest, reply: Reply) -> None:
        is_null = planned.role is Role.CALIBRATION and reply.outcome is Outcome.ANSWERED
        if is_null and not planned.is_chat and reply.prompt_tokens is not None:
            self._calibration.add(planned.prompt_text, reply.prompt_tokens)

    def _scrubbed(self, reply: Reply) -> Reply:
        """Take every credential out of what a server may have echoed."""
        scrub = self.credentials.scrub
        changes: dict[str, Any] = {
            name: scrub(value)
            for name in ("error_type", "error_message", "output_text", "response_id", "replica")
            if (value := getattr(reply, name)) is not None
        }
        headers = tuple((name, scrub(value)) for name, value in reply.headers)
        return replace(reply, headers=headers, **changes)

    async def _ask_facts(self) -> ServerFacts:
        bearer = self.credentials.any()
        return await ask_facts(
            self._asking_client(), self.address, bearer=bearer, model=self._model
        )

    async def _ask_tokens(self, body: dict[str, Any]) -> tuple[int, list[int] | None] | None:
        bearer = self.credentials.any()
        url = f"{self.address.root}/tokenize"
        return await ask_token_ids(self._asking_client(), url, body=body, bearer=bearer)

    async def _ask_scores(self, body: dict[str, Any], bearer: str) -> Json:
        url = f"{self.address.api}/completions"
        return await ask_json(
            self._asking_client(), url, body=body, bearer=bearer, timeout_s=self._limits.total_s
        )

    def _asking_client(self) -> httpx.AsyncClient:
        if self._asker is None:
            self._asker = self._new_client()
        return self._asker

    def _run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._running_loop()).result()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="kvaudit-http", daemon=True
            )
            self._thread.start()
        return self._loop


def _tls_context(address: ServerAddress, ca_file: Path | None) -> ssl.SSLContext:
    """Return what to trust; made once, since reading the certificates takes a while."""
    if not address.root.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca_file is not None:
            return ssl.create_default_context(cafile=ca_file)
        return httpx.create_ssl_context()
    except (OSError, ssl.SSLError) as error:
        where = ca_file or os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        raise ConfigError(
            f"can't read certificates from `{where}`: {error}",
            hint="it must be a PEM file of certificate authorities",
        ) from None

"""The reference engine in process, as a Target: what the audit talks to without a server.

One thread: the engine steps while a wave is in flight. A wait in which nothing would happen is
skipped, and counted in the times that are reported.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from engine.config import sized_for, with_needs
from engine.engine import Engine, build_engine
from engine.faults import fault_plan
from engine.request import AdmittedEvent, EndEvent, Event, Request, Sampling, TokenEvent
from engine.role import StepModel
from kvaudit import __version__
from kvaudit.clock import Clock
from kvaudit.config import AuditConfig
from kvaudit.errors import EngineError
from kvaudit.records import Outcome
from kvaudit.serverfacts import RoleFacts, ServerFacts
from kvaudit.target import PlannedRequest, Reply, Wave

KIND = "kvaudit-reference"
LANDING_STEPS_MAX = 100_000  # a cancelled request that is still there after so many is a bug


@dataclass(slots=True, kw_only=True)
class _Flight:
    """One request in flight: what was planned, and what has come back."""

    planned: PlannedRequest
    sent_unix_ns: int
    sent_ns: int
    first_token_ns: int | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class ReferenceTarget:
    """The reference engine as a Target.

    Attributes:
        engine: The engine that is talked to; tests read its trace, no probe does.
        model: The model of its prefill role.
    """

    def __init__(self, engine: Engine, model: StepModel) -> None:
        self.engine = engine
        self.model = model
        self._responses = 0

    def facts(self) -> ServerFacts:
        """Return what the engine says of itself."""
        config = self.engine.config
        return ServerFacts(
            kind=KIND,
            version=__version__,
            model=config.model,
            models=(config.model, *self.model.adapters),
            context_tokens=config.context_tokens,
            roles=(
                RoleFacts(
                    role="prefill",
                    pool_tokens=config.prefill_pool_tokens,
                    page_size=config.page_size,
                    max_input_tokens=config.prefill_limit - 1,
                ),
                RoleFacts(
                    role="decode",
                    pool_tokens=config.decode_pool_tokens,
                    page_size=config.page_size,
                    max_input_tokens=config.decode_limit - 1,
                ),
            ),
            prefix_cache=config.prefix_cache,
            returns_logprobs=True,
            returns_token_ids=True,
            dtype=None if config.dtype == "auto" else config.dtype,
        )

    def count_tokens(self, text: str) -> int:
        """Return the length of a plain prompt in the model's tokens."""
        return len(self.model.encode(text))

    def send(self, wave: Wave, departing: Callable[[PlannedRequest], None]) -> Iterator[Reply]:
        """Send one wave and yield one Reply for each request, in the order in which they end.

        Whatever cuts this short (an error, Ctrl-C, a consumer that stops), the engine is left
        empty and usable.
        """
        waiting = deque(wave.requests)
        in_flight_max = wave.concurrency or max(len(waiting), 1)
        flights: dict[str, _Flight] = {}
        is_stepping = False
        try:
            while waiting or flights:
                while waiting and len(flights) < in_flight_max:
                    planned = waiting.popleft()
                    departing(planned)
                    flights[planned.request_id] = self._depart(planned)
                is_stepping = True
                events = self.engine.step()
                self.engine.skip_wait()
                is_stepping = False
                for event in events:
                    reply = self._take(flights, event)
                    if reply is not None:
                        yield reply
        finally:
            if is_stepping:  # cut in the middle of a step: its books may be half written
                self.engine.reset()
            elif flights:
                self._land(flights)

    def replay_obstacle(self, planned: PlannedRequest) -> str | None:
        """Return None: a prompt of any length can be replayed, under any adapter of the model."""
        del planned
        return None

    def replay_logprobs(
        self, planned: PlannedRequest, output_token_ids: Sequence[int]
    ) -> list[float]:
        """Return the log-probability of each given token under the prompt really sent.

        Computed by the model itself with a contiguous cache: no pool, no wire, no limit.
        """
        return self.model.replay_logprobs(
            self._prompt_ids(planned), output_token_ids, adapter=self._adapter(planned)
        )

    def close(self) -> None:
        """Let go of every request; the engine holds nothing else."""
        self.engine.reset()

    def _depart(self, planned: PlannedRequest) -> _Flight:
        clock = self.engine.clock
        flight = _Flight(
            planned=planned, sent_unix_ns=clock.unix_ns(), sent_ns=clock.monotonic_ns()
        )
        self.engine.submit(
            Request(
                request_id=planned.request_id,
                prompt_ids=tuple(self._prompt_ids(planned)),
                adapter=self._adapter(planned),
                cache_salt=planned.cache_salt,
                sampling=Sampling(
                    temperature=planned.temperature,
                    seed=planned.seed,
                    max_tokens=planned.max_tokens,
                ),
            )
        )
        return flight

    def _adapter(self, planned: PlannedRequest) -> str | None:
        return None if planned.model in ("", self.engine.config.model) else planned.model

    def _prompt_ids(self, planned: PlannedRequest) -> list[int]:
        if planned.is_chat:
            messages = [
                {"role": message.role, "content": message.content} for message in planned.messages
            ]
            return self.model.encode_chat(messages)
        return self.model.encode(planned.prompt_text)

    def _take(self, flights: dict[str, _Flight], event: Event) -> Reply | None:
        flight = flights.get(event.request_id)
        if flight is None:
            return None
        match event:
            case AdmittedEvent():
                self._cut(flight)
            case TokenEvent():
                if flight.first_token_ns is None:
                    flight.first_token_ns = event.at_ns
                flight.token_ids.append(event.token_id)
                flight.logprobs.append(event.logprob)
                self._cut(flight)
            case EndEvent():
                del flights[event.request_id]
                return self._reply(flight, event)
        return None

    def _cut(self, flight: _Flight) -> None:
        limit = flight.planned.cancel_after_tokens
        if limit is not None and len(flight.token_ids) >= limit:
            self.engine.cancel(flight.planned.request_id)

    def _reply(self, flight: _Flight, end: EndEvent) -> Reply:
        planned, usage, error = flight.planned, end.usage, end.error
        self._responses += 1
        has_output = bool(flight.token_ids) or end.status == 200
        first_ns = flight.first_token_ns if planned.stream else None
        return Reply(
            request_id=planned.request_id,
            outcome=_outcome(end),
            status=None if end.status == 499 else end.status,
            error_type=error.type if error is not None else None,
            error_message=error.message if error is not None else None,
            output_text=self._text(flight) if has_output else None,
            output_token_ids=tuple(flight.token_ids) if has_output else None,
            output_logprobs=tuple(flight.logprobs) if has_output and planned.logprobs else None,
            finish_reason=end.finish_reason,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            sent_unix_ns=flight.sent_unix_ns,
            ttft_ms=(first_ns - flight.sent_ns) / 1e6 if first_ns is not None else None,
            ended_unix_ns=flight.sent_unix_ns + end.at_ns - flight.sent_ns,
            response_id=f"cmpl-{self._responses}",
        )

    def _text(self, flight: _Flight) -> str:
        ids = flight.token_ids
        if ids and ids[-1] in self.model.eos_token_ids:
            ids = ids[:-1]
        return self.model.decode(ids)

    def _land(self, flights: dict[str, _Flight]) -> None:
        for request_id in flights:
            self.engine.cancel(request_id)
        for _ in range(LANDING_STEPS_MAX):
            if not self.engine.has_work:
                return
            self.engine.step()
            self.engine.skip_wait()
        raise EngineError("the engine did not come to rest after its requests were cancelled")


def reference_target(config: AuditConfig, *, clock: Clock | None = None) -> ReferenceTarget:
    """Build the reference engine that an audit asks for; says on stderr what a fault switched on.

    Raises:
        ConfigError: A name, a size or a device does not fit.
        StartRefusedError: The fix `start-check` refuses the deployment.
    """
    plan = fault_plan(config.fault, config.fixes)
    sized = replace(
        sized_for(config.model),
        device=config.device,
        prefill_device=config.prefill_device,
        decode_device=config.decode_device,
        dtype=config.dtype,
        seed=config.seed,
    )
    engine_config, switched = with_needs(sized, plan)
    for part in switched:
        sys.stderr.write(f"fault `{plan.fault}` needs the {part}: switched on\n")
    engine, model = build_engine(engine_config, clock=clock)
    return ReferenceTarget(engine, model)


def _outcome(end: EndEvent) -> Outcome:
    if end.status == 200:
        return Outcome.ANSWERED
    if end.status == 499:
        return Outcome.CANCELLED
    if end.status == 429:
        return Outcome.RATE_LIMITED
    if end.status < 500:
        return Outcome.REFUSED
    # A 5xx that names the failed transfer has refused without content.
    is_named = end.error is not None and end.error.code.startswith("kv_")
    return Outcome.REFUSED if is_named else Outcome.ERROR

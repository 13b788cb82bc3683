"""EngineThread: the engine stepped in a thread of its own, fed by a queue of commands.

The engine knows no threads. Whoever serves it over HTTP talks to this class: commands go in from
any thread, events come out through the listener of their request, called in the engine's thread.
"""

import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from engine.engine import Engine
from engine.request import ApiError, EndEvent, Event, Request
from engine.role import StepModel
from kvaudit.errors import EngineError

Listener = Callable[[Sequence[Event]], None]

STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGauges:
    """How full one role's pool is, in pages."""

    role: str
    pages: int
    pages_free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGauges:
    """What the engine's state was after its latest step.

    Attributes:
        roles: One for each role.
        requests_alive: Requests that have a listener.
        ended: Ended requests by status.
        steps: Steps made since the start.
        crashes: Steps that raised; each ended every request alive with a 500.
    """

    roles: tuple[RoleGauges, ...]
    requests_alive: int = 0
    ended: tuple[tuple[int, int], ...] = ()
    steps: int = 0
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request
    listener: Listener


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Score:
    token_ids: tuple[int, ...]
    adapter: str | None
    done: "Future[list[float]]"


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Submit | _Cancel | _Score | _Stop


class EngineThread:
    """The engine on its own thread.

    Invariant: every request that was submitted and has not ended has exactly one listener.

    Attributes:
        engine: The engine; touched by this thread alone once it has started.
        model: The model of its prefill role; its tokenizer may be used by any thread.
        gauges: The latest state, for `/metrics`.
    """

    def __init__(self, engine: Engine, model: StepModel) -> None:
        self.engine = engine
        self.model = model
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._listeners: dict[str, Listener] = {}
        self._ended: dict[int, int] = {}
        self._steps = self._crashes = 0
        self._is_checked = False
        self._thread = threading.Thread(target=self._run, name="kvaudit-engine", daemon=True)
        self.gauges = self._measure()

    @property
    def is_alive(self) -> bool:
        """Whether requests are being served."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self) -> None:
        """End every request with a 503 and stop stepping."""
        self._commands.put(_Stop())
        self._thread.join(STOP_TIMEOUT_S)

    def submit(self, request: Request, listener: Listener) -> None:
        """Send a request to the engine; its events go to `listener`, an EndEvent last.

        No two requests alive may have one id.
        """
        self._commands.put(_Submit(request, listener))

    def cancel(self, request_id: str) -> None:
        """Stop a request; its listener hears no more."""
        self._commands.put(_Cancel(request_id))

    def score(self, token_ids: Sequence[int], adapter: str | None) -> "Future[list[float]]":
        """Compute the log-probability of each token but the first, past every pool and cache."""
        done: Future[list[float]] = Future()
        self._commands.put(_Score(tuple(token_ids), adapter, done))
        return done

    def _run(self) -> None:
        while True:
            commands = self._next_commands()
            if any(isinstance(command, _Stop) for command in commands):
                self._end_all(503, "server_stopped", "The server is stopping.")
                return
            try:
                for command in commands:
                    self._obey(command)
                if self.engine.has_work:
                    self._tell(self.engine.step())
                    self._steps += 1
                    self._is_checked = False
                elif not self._is_checked:
                    self.engine.check_integrity()
                    self._is_checked = True
            except Exception:  # a bug of the engine: the requests are lost, the server is not
                traceback.print_exc(file=sys.stderr)
                self._crashes += 1
                self._end_all(500, "engine_crashed", "The engine failed and was reset.")
                self.engine.reset()
            self.gauges = self._measure()

    def _next_commands(self) -> list[_Command]:
        """Return what has come in; waits where the engine has nothing to do before that."""
        commands: list[_Command] = []
        if not self.engine.has_work and self._is_checked:
            commands.append(self._commands.get())
        elif (wait_ns := self.engine.wait_ns()) > 0:
            began = time.perf_counter_ns()
            try:
                commands.append(self._commands.get(timeout=wait_ns / 1e9))
            except queue.Empty:
                self.engine.clock.tick(wait_ns)
            else:
                self.engine.clock.tick(min(wait_ns, time.perf_counter_ns() - began))
        while not self._commands.empty():
            commands.append(self._commands.get())
        return commands

    def _obey(self, command: _Command) -> None:
        match command:
            case _Submit(request, listener):
                try:
                    self.engine.submit(request)
                except EngineError as error:  # the id is alive already
                    listener([_failure(request.request_id, 409, "duplicate_id", error.message)])
                else:
                    self._listeners[request.request_id] = listener
            case _Cancel(request_id):
                if self._listeners.pop(request_id, None) is not None:
                    self.engine.cancel(request_id)
            case _Score(done=done) as asked:
                if done.set_running_or_notify_cancel():
                    self._score(asked)
            case _Stop():
                raise AssertionError("handled by the caller")

    def _score(self, asked: _Score) -> None:
        ids = asked.token_ids
        try:
            scores = self.model.replay_logprobs(ids[:1], ids[1:], adapter=asked.adapter)
            asked.done.set_result(scores)
        except Exception as error:  # told to the one who asked
            asked.done.set_exception(error)

    def _tell(self, events: Sequence[Event]) -> None:
        by_request: dict[str, list[Event]] = {}
        for event in events:
            by_request.setdefault(event.request_id, []).append(event)
            if isinstance(event, EndEvent):
                self._ended[event.status] = self._ended.get(event.status, 0) + 1
        told = [(self._listeners.get(request_id), own) for request_id, own in by_request.items()]
        for request_id, own in by_request.items():
            if isinstance(own[-1], EndEvent):
                self._listeners.pop(request_id, None)
        # Measured before anybody is told, so that who has heard of an end can see it counted.
        self.gauges = self._measure()
        for listener, own in told:
            if listener is not None:
                listener(own)

    def _end_all(self, status: int, code: str, message: str) -> None:
        listeners, self._listeners = self._listeners, {}
        for request_id, listener in listeners.items():
            listener([_failure(request_id, status, code, message)])

    def _measure(self) -> EngineGauges:
        return EngineGauges(
            roles=tuple(
                RoleGauges(role=role.name, pages=role.pool.num_pages, pages_free=role.pool.num_free)
                for role in self.engine.roles
            ),
            requests_alive=len(self._listeners),
            ended=tuple(sorted(self._ended.items())),
            steps=self._steps,
            crashes=self._crashes,
        )


def _failure(request_id: str, status: int, code: str, message: str) -> EndEvent:
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = ApiError(status=status, type=kind, code=code, message=message)
    return EndEvent(request_id=request_id, at_ns=0, status=status, error=error)

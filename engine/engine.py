"""Engine: both roles and the wire in one process, one thread, one step at a time.

The router of a disaggregated deployment is in here too: it sends each request to both roles under
one room, and answers with what decode says.
"""

import random
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from engine.config import EngineConfig, fitted, start_check
from engine.decode import DecodeWorker
from engine.faults import Need
from engine.model import build_model
from engine.phase import PHASES, Actor, Phase
from engine.prefill import PrefillWorker, namespace_of
from engine.request import (
    AdmittedEvent,
    ApiError,
    DecodeState,
    EndEvent,
    Event,
    LegReport,
    PrefillState,
    Request,
    too_long,
)
from engine.role import Role, StepModel, build_role
from engine.sanitizer import Sanitizer
from engine.tags import TagsModel
from engine.timer import EngineClock
from engine.trace import PageTrace
from engine.transfer import Wire
from engine.watch import Both, SlotWatcher
from kvaudit.clock import Clock, WallClock
from kvaudit.errors import ConfigError, EngineError

ROOM_BITS = 63
REPORTS_MAX = 10_000


class Engine:
    """The reference engine.

    Invariant: every page of both pools is free, or held by a live leg, the prefix cache, or a
    writer that has not drained; see `check_integrity`.

    Attributes:
        config: What it was built from.
        clock: Reported time and engine time.
        trace: Ground truth of slots; None unless `config.trace`.
        sanitizer: Checks every page's use; None unless `config.sanitizer` is on.
        reports: What the roles logged, latest last, at most `REPORTS_MAX`.

    Args:
        config: Checked sizes, faults and fixes.
        model: Computes prefill, and decode too unless `decode_model` is given.
        decode_model: Another instance of the same model, on decode's device.
        clock: Where reported time comes from.

    Raises:
        StartRefusedError: The fix `start-check` is on and a pool can't hold one context.
        ConfigError: The model has fewer positions than the context, or no adapter where the fault
            needs one.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: StepModel,
        decode_model: StepModel | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        if config.faults.has_fix("start-check"):
            start_check(config)
        if config.context_tokens > model.max_positions:
            raise ConfigError(
                f"a context of {config.context_tokens} tokens is more than the"
                f" {model.max_positions} positions of the model `{model.name}`",
                hint=f"choose at most {model.max_positions}",
            )
        spec = config.faults.spec
        if spec is not None and Need.ADAPTERS in spec.needs and not model.adapters:
            raise ConfigError(
                f"the fault `{spec.name}` can't strike: the model `{model.name}` has no adapters",
                hint="choose a model with adapters, such as `copier`",
            )
        self.config = config
        self.clock = EngineClock(clock if clock is not None else WallClock())
        self.trace = _build_trace(config)
        self.reports: deque[LegReport] = deque(maxlen=REPORTS_MAX)
        self._model = model
        self._rng = random.Random(config.seed)
        self._arrivals = 0
        self._prefill_role = build_role("prefill", config, model)
        self._decode_role = build_role("decode", config, decode_model or model)
        self.sanitizer = _build_sanitizer(config, self.roles)
        self._watch = _watched_by(self.trace, self.sanitizer)
        for role in self.roles:
            role.watch = self._watch
        self.reset()

    def reset(self) -> None:
        """Drop every request and begin with new books; keys and values stay where they lie.

        For a caller that was cut off in the middle of a step.
        """
        for role in (self._prefill_role, self._decode_role):
            role.clear_books()
        if self.sanitizer is not None:
            self.sanitizer.forget_pages()
        self._alive: dict[str, int] = {}
        self._events: list[Event] = []
        self._did = True
        self.wire = Wire(
            self._prefill_role.cache,
            self._decode_role.cache,
            faults=self.config.faults,
            trace=self._watch,
            late_turns=self.config.wire_late_turns,
        )
        self.prefill = PrefillWorker(self._prefill_role, self.wire, self.clock, self.reports)
        self.decode = DecodeWorker(self._decode_role, self.wire, self.clock, self.reports)

    def submit(self, request: Request) -> None:
        """Take a request; a refusal comes as an EndEvent of the next step.

        Raises:
            EngineError: A request of that id is alive.
        """
        if request.request_id in self._alive:
            raise EngineError(
                f"a request `{request.request_id}` is alive already",
                hint="an id may come again only after its request has ended",
            )
        error = self._door(request)
        if error is not None:
            self._refuse(request, error)
            return
        ordinal = self._arrivals
        self._arrivals += 1
        self._alive[request.request_id] = ordinal
        if self.trace is not None:
            namespace = namespace_of(request, self.config.model)
            traced = self.trace.begin(request.request_id, namespace, request.prompt_ids)
            assert traced == ordinal, "the trace has lost count"
        fresh = self._rng.getrandbits(ROOM_BITS)
        if self.sanitizer is not None:
            namespace = namespace_of(request, self.config.model)
            self.sanitizer.begin(request.request_id, request.tenant, namespace, request.prompt_ids)
        key = self.wire.open(fresh if request.room is None else request.room)
        self.decode.add(request, ordinal, key)
        self.prefill.add(request, ordinal, key)
        self._did = True

    def cancel(self, request_id: str) -> None:
        """Stop a request, as when the client goes away; nothing happens if it has ended."""
        ordinal = self._alive.pop(request_id, None)
        if ordinal is None:
            return
        self.decode.cancel(ordinal)
        self.prefill.cancel(ordinal)
        self._events.append(
            EndEvent(
                request_id=request_id,
                at_ns=self.clock.monotonic_ns(),
                status=499,
                finish_reason="abort",
            )
        )
        self._did = True

    def step(self, actors: Iterable[Actor | Phase] = tuple(Actor)) -> list[Event]:
        """Let each of `actors` act once, in that order; returns what happened, in order.

        A phase in place of an actor is that part of the actor's work alone.
        """
        did = computed = False
        for actor in actors:
            phases = PHASES[actor] if isinstance(actor, Actor) else (actor,)
            if phases[0] in PHASES[Actor.DECODE]:
                decoded = self.decode.step(phases)
                self._tell(decoded.events)
                did |= decoded.did
            elif phases[0] in PHASES[Actor.PREFILL]:
                prefilled = self.prefill.step(phases)
                self._admit(prefilled.admitted)
                did |= prefilled.did
                computed |= prefilled.computed
            else:
                did |= self.wire.pump(self.config.wire_pages_per_step)
        if not computed:  # a prompt that waits its turn is not late
            self.clock.tick(self.config.step_ns)
        self._did = did
        events, self._events = self._events, []
        return events

    def wait_ns(self) -> int:
        """Return how long nothing will happen, in nanoseconds of engine time; 0 = step on.

        The in-process driver skips that time, a server sleeps and ticks it.
        """
        if self._did or self._events or not self.has_work:
            return 0
        until = self.decode.next_timeout_ns()
        assert until is not None, "work is left, and neither role nor a timer will do it"
        return max(0, until - self.clock.engine_ns)

    def skip_wait(self) -> None:
        """Jump over the time in which nothing will happen, if there is any."""
        wait = self.wait_ns()
        if wait > 0:
            self.clock.skip(wait)

    @property
    def did_anything(self) -> bool:
        """Whether the latest step, or a request since, changed anything."""
        return self._did

    @property
    def roles(self) -> tuple[Role, Role]:
        """Both roles, prefill first: whose pools are how full."""
        return self._prefill_role, self._decode_role

    @property
    def has_work(self) -> bool:
        """Whether a request is alive, an event is untold, or a page waits for its writer."""
        return bool(self._events or self._alive or self.prefill.has_work or self.decode.has_work)

    def states(self, request_id: str) -> tuple[PrefillState, DecodeState]:
        """Return where both legs of a request are; DONE for one that has ended."""
        ordinal = self._alive.get(request_id, -1)
        return self.prefill.state(ordinal), self.decode.state(ordinal)

    def decode_pages(self, request_id: str) -> tuple[int, ...]:
        """Return the pages that decode holds for a live request, in logical order."""
        return self.decode.pages(self._alive[request_id])

    def prefill_length(self, request_id: str) -> int:
        """Return the prompt length of a live request as prefill counts it, in tokens."""
        return self.prefill.length(self._alive[request_id])

    def check_integrity(self) -> None:
        """Assert that no page, row, copy or request is lost or held twice."""
        self.prefill.check_integrity()
        self.decode.check_integrity()
        self.wire.check_integrity()
        if self.sanitizer is not None:
            self.sanitizer.watchdog(sum(role.parts_run for role in self.roles))

    def _door(self, request: Request) -> ApiError | None:
        if len(self._alive) >= self.config.queue_max:
            return ApiError(
                status=429, type="rate_limit_error", code="queue_full",
                message=f"{self.config.queue_max} requests are alive already.",
            )  # fmt: skip
        error = self._check_request(request)
        if error is not None:
            return error
        # Each role has its own door, and each compares with its own pool. Prefill's is where a
        # refusal must reach decode as well: nothing has been reserved anywhere yet.
        return self.prefill.door(request, self._arrivals) or self.decode.door(request)

    def _check_request(self, request: Request) -> ApiError | None:
        length = len(request.prompt_ids)
        if length == 0:
            return _invalid("prompt", "The prompt is empty.")
        if request.sampling.max_tokens < 1:
            return _invalid("max_tokens", "`max_tokens` must be at least 1.")
        if length >= self.config.context_tokens:
            return too_long(role="tokenizer", length=length, limit=self.config.context_tokens)
        if not all(0 <= token < self._model.vocab_size for token in request.prompt_ids):
            return _invalid("prompt", "A token id is outside the model's vocabulary.")
        if request.adapter is not None and request.adapter not in self._model.adapters:
            return ApiError(
                status=404, type="invalid_request_error", code="model_not_found", param="model",
                message=f"There is no adapter `{request.adapter}`.",
            )  # fmt: skip
        return None

    def _refuse(self, request: Request, error: ApiError) -> None:
        self._events.append(
            EndEvent(
                request_id=request.request_id,
                at_ns=self.clock.monotonic_ns(),
                status=error.status,
                error=error,
            )
        )

    def _admit(self, request_ids: Iterable[str]) -> None:
        at_ns = self.clock.monotonic_ns()
        self._events.extend(
            AdmittedEvent(request_id=request_id, at_ns=at_ns)
            for request_id in request_ids
            if request_id in self._alive  # decode may have given it up meanwhile
        )

    def _tell(self, events: Iterable[Event]) -> None:
        for event in events:
            self._events.append(event)
            if isinstance(event, EndEvent):
                del self._alive[event.request_id]


class BuiltEngine(NamedTuple):
    """An engine and the model of its prefill role."""

    engine: Engine
    model: StepModel


def build_engine(config: EngineConfig, *, clock: Clock | None = None) -> BuiltEngine:
    """Load the model on each role's device and build the engine around it.

    Raises:
        ConfigError: A name, a size or a device does not fit.
        EngineError: The model does not compute right over pages.
        StartRefusedError: The fix `start-check` refuses the deployment.
    """
    prefill_device = resolve_device(config.prefill_device or config.device)
    decode_device = resolve_device(config.decode_device or config.device)
    model = load_model(config, prefill_device)
    decode_model = model if decode_device == prefill_device else load_model(config, decode_device)
    engine = Engine(fitted(config, model.max_positions), model, decode_model, clock=clock)
    return BuiltEngine(engine, model)


def load_model(config: EngineConfig, device: torch.device) -> StepModel:
    """Return the model of a configuration on one device.

    Raises:
        ConfigError, EngineError: As `engine.model.build_model`.
    """
    if config.model == TagsModel.name:
        return TagsModel()
    return build_model(config.model, str(device), config.dtype, deterministic=config.deterministic)


def resolve_device(name: str) -> torch.device:
    """Return the device of a name: `auto` is CUDA where it is, else the CPU.

    Raises:
        ConfigError: The device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"there is no device `{name}`: {torch.cuda.device_count()} CUDA devices are visible",
            hint="choose `cpu`, or `auto` to take CUDA only where it is",
        )
    return device


def _build_trace(config: EngineConfig) -> PageTrace | None:
    if not config.trace:
        return None
    return PageTrace(
        {"prefill": config.prefill_pool_tokens, "decode": config.decode_pool_tokens},
        config.page_size,
    )


def _build_sanitizer(config: EngineConfig, roles: Sequence[Role]) -> Sanitizer | None:
    if config.sanitizer == "off":
        return None
    sanitizer = Sanitizer(
        {role.name: role.cache for role in roles},
        mode=config.sanitizer,
        action=config.on_violation,
        share=config.sanitizer_share,
        seed=config.seed,
    )
    for role in roles:
        role.sanitizer = sanitizer
        role.pool.watcher = sanitizer.pools[role.name]
    return sanitizer


def _watched_by(trace: PageTrace | None, sanitizer: Sanitizer | None) -> SlotWatcher | None:
    if trace is None or sanitizer is None:
        return sanitizer if trace is None else trace
    return Both(trace, sanitizer)  # the trace first: it must know even what the sanitizer stops


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(
        status=400, type="invalid_request_error", code="invalid_value", param=param, message=message
    )

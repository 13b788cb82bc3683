"""One audit: plan, send, look, stop; then judge what was recorded, and tell.

The loop is `Audit.run`; everything else here is how it begins, what stops it and how it tells.
"""

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.config import check_model
from engine.faults import fault_plan
from kvaudit.cli.early import early_verdict, is_look_due, with_planned_blocks
from kvaudit.cli.flags import not_built
from kvaudit.cli.planning import tell_plan
from kvaudit.cli.progress import Progress
from kvaudit.cli.remote import confirm_cost, open_server, wants_keys
from kvaudit.cli.report import rendered
from kvaudit.cli.session import (
    EarlierRun,
    Session,
    earlier_run,
    new_folder,
    new_header,
    refuse_other_target,
    resumed_config,
    with_nonce,
)
from kvaudit.cli.terminal import escape, say, write_text
from kvaudit.clock import Clock
from kvaudit.config import AuditConfig, audit_config
from kvaudit.errors import EngineError, MissingExtraError, StartRefusedError, TargetError
from kvaudit.records import RequestRecord
from kvaudit.serverfacts import ServerFacts
from kvaudit.store.folder import RunFolder, refuse_used_folder
from kvaudit.store.journal import Closing
from kvaudit.store.manifest import write_manifest
from kvaudit.store.reading import open_run
from kvaudit.target import Target, Wave
from probes.plan import EDGE, PlanContext, Probe, edge_told, plan_for, prelude_for, probed
from probes.replaying import run_and_replay

REFERENCE = "reference"
REPORTS = ("json", "html")
ENGINE_PACKAGES = {"torch", "transformers", "tokenizers", "safetensors", "gguf"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What decides how the command talks and where it writes, not what it sends.

    Attributes:
        out: The run folder; None = one of its own under `kvaudit-runs`.
        as_json, is_quiet, is_dry_run, is_resumed, retries_unknown: As the flags say.
        is_authorised: A target that is not loopback may be probed.
        says_yes: Its tokens may be spent without asking.
        flags, settings: Settings that were given as flags, and by the file.
    """

    out: Path | None
    as_json: bool
    is_quiet: bool
    is_dry_run: bool
    is_resumed: bool
    retries_unknown: bool
    is_authorised: bool = False
    says_yes: bool = False
    flags: dict[str, Any]
    settings: dict[str, Any]


def run_audit(options: Options, clock: Clock) -> RunFolder | None:
    """Run, or go on with, one audit; returns where it lies, or None after a dry run."""
    earlier = earlier_run(options.out) if options.is_resumed else None
    if earlier is not None:
        config = resumed_config(earlier.header, options.flags)
    else:
        config = with_nonce(audit_config(options.settings | options.flags))
        if options.out is not None:  # before anything is built or sent
            refuse_used_folder(options.out)
    refuse_unbuilt(config)
    refuse_unknown_names(config)
    audit = Audit(config, options, clock, earlier)
    try:
        target = open_target(config, options)
    except StartRefusedError as error:
        return audit.refused(error)
    with closing(target):
        return audit.run(target)


class Audit:
    """One audit from its plan to its verdict."""

    def __init__(
        self, config: AuditConfig, options: Options, clock: Clock, earlier: EarlierRun | None
    ) -> None:
        self._config = config
        self._options = options
        self._clock = clock
        self._earlier = earlier
        self._probes = plan_for(config)

    def run(self, target: Target) -> RunFolder | None:
        """Plan, send wave by wave, stop at a limit, judge; returns where the run lies."""
        facts = target.facts()
        count = partial(count_tokens, target)
        context = PlanContext(config=self._config, facts=facts, count_tokens=count)
        self._config = with_planned_blocks(self._config, self._strata(context))
        context = replace(context, config=self._config)
        prelude = prelude_for(context) if self._config.target != REFERENCE else ()
        cost = tell_plan(
            (*prelude, *self._probes),
            context,
            is_dry_run=self._options.is_dry_run,
            as_json=self._options.as_json,
            is_quiet=self._options.is_quiet,
        )
        if self._options.is_dry_run:
            return None
        if self._config.target != REFERENCE:
            confirm_cost(self._config, says_yes=self._options.says_yes)
        session = self._open_session(facts, planned=cost.requests)
        with closing(session), interruptible() as interrupts:
            stopped = self._send_all(target, context, session, prelude)
            interrupts.is_sending = False
            if stopped is not None:
                session.stop(stopped)
            context = probed(context, session.records)
            facts = context.facts
            return self._judge(session, facts, self._strata(context), stopped)

    def refused(self, error: StartRefusedError) -> RunFolder:
        """Keep a run that could not start: `inconclusive`, with the reason."""
        if self._options.is_dry_run:
            raise error
        session = self._open_session(None, planned=0)
        with closing(session):
            session.stop(error.message)
            return self._judge(session, None, [], error.message)

    def _send_all(
        self, target: Target, context: PlanContext, session: Session, prelude: Sequence[Probe]
    ) -> str | None:
        """Send every wave of every scenario; returns why it stopped early, if it did.

        What a prelude finds decides the lengths of everything after it.
        """
        limits = Limits(self._config, self._clock)
        try:
            for probe in (*prelude, *self._probes):
                while (wave := probe.next_wave(context, session.records)) is not None:
                    if self._may_end(probe, wave, context, session):
                        break
                    if reached := limits.reached_by(wave, session.records):
                        return reached
                    before = len(session.records)
                    session.take(wave, partial(run_and_replay, target, earlier=session.records))
                    if refused := wants_keys(session.records[before:]):
                        return refused
                context = self._after(probe, context, session)
        except KeyboardInterrupt:
            return "interrupted"
        except (TargetError, EngineError) as error:
            return error.message
        return None

    def _strata(self, context: PlanContext) -> list[str]:
        return [held for probe in self._probes for held in probe.strata(context)]

    def _may_end(self, probe: Probe, wave: Wave, context: PlanContext, session: Session) -> bool:
        """Look whether the run has said all that it can say, and note why it ends."""
        if not is_look_due(probe, wave):
            return False
        reason = early_verdict(session, context, self._strata(context), context.facts)
        if reason is not None:
            session.end_early(reason)
            if not self._options.is_quiet:
                say(f"ending early: {escape(reason)}")
        return reason is not None

    def _after(self, probe: Probe, context: PlanContext, session: Session) -> PlanContext:
        """Tell what a search for the edge found, and plan what follows by it."""
        if probe.name != EDGE:
            return context
        if not self._options.is_quiet:
            for line in edge_told(context, session.records):
                say(f"edge: {line}")
        return probed(context, session.records)

    def _judge(
        self,
        session: Session,
        facts: ServerFacts | None,
        strata: Sequence[str],
        stopped: str | None,
    ) -> RunFolder:
        from kvaudit.audit import judge_journal  # loads scipy and numba: a bad flag never needs it

        closing = Closing(
            strata=tuple(dict.fromkeys(strata)),
            config=asdict(self._config),
            ended_unix_ns=self._clock.unix_ns(),
            stopped=stopped,
            facts=facts,
        )
        session.finish(closing, judge_journal)
        write_reports(session.folder)
        return session.folder

    def _open_session(self, facts: ServerFacts | None, *, planned: int) -> Session:
        earlier = self._earlier
        if earlier is not None and facts is not None:
            refuse_other_target(earlier.header, facts)
        if earlier is not None and self._config.target == REFERENCE and not self._options.is_quiet:
            say(
                "resuming: the engine begins with empty pools, so what is left of the interrupted"
                " block meets less of its fill"
            )
        header = earlier.header if earlier else new_header(self._config, facts, self._clock)
        folder = earlier.folder if earlier else new_folder(self._options.out, header)
        progress = Progress(self._clock, quiet=self._options.is_quiet, planned=planned)
        return Session(
            folder,
            header,
            self._clock,
            progress,
            earlier=earlier,
            retries_unknown=self._options.retries_unknown,
        )


class Limits:
    """What may stop a run between two waves; a wave under way is always finished."""

    def __init__(self, config: AuditConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._started_ns = clock.monotonic_ns()

    def reached_by(self, wave: Wave, records: Sequence[RequestRecord]) -> str | None:
        """Return which limit the wave would go over, in words; None = none."""
        seconds = (self._clock.monotonic_ns() - self._started_ns) / 1e9
        if self._config.max_time_s is not None and seconds >= self._config.max_time_s:
            return f"--max-time of {self._config.max_time_s:g} s reached"
        if self._config.max_tokens is None:
            return None
        spent = sum(_spent_tokens(record) for record in records)
        next_at_most = sum(
            (held.prompt_tokens_sent or 0) + held.max_tokens for held in wave.requests
        )
        if spent + next_at_most > self._config.max_tokens:
            return f"--max-tokens of {self._config.max_tokens} reached"
        return None


class Interrupts:
    """What Ctrl-C and SIGTERM do while a run is live.

    The first one stops the sending, or lets a judgement under way come to its end; the second ends
    the process.

    Attributes:
        is_sending: Whether there is anything to stop.
    """

    def __init__(self) -> None:
        self.is_sending = True

    def stop(self, number: int, frame: object) -> None:  # noqa: ARG002
        """Handle the first signal."""
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, signal.SIG_DFL)
        say("stopping: judging what was recorded; once more ends it at once")
        if self.is_sending:
            raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Handle Ctrl-C and SIGTERM in the body as Interrupts says."""
    interrupts = Interrupts()
    before = {
        signal_number: signal.signal(signal_number, interrupts.stop)
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupts
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


def write_reports(folder: RunFolder) -> None:
    """Write the reports of a judged run, then the manifest of all its files."""
    render_reports(folder)
    with open_run(folder) as reader:
        write_manifest(folder, reader)


def render_reports(folder: RunFolder) -> None:
    """Write the reports of a judged run.

    They are rendered from what is stored, so that they can be rendered again to the same bytes.
    """
    with open_run(folder) as reader:
        for name in REPORTS:
            folder.write(f"report.{name}", rendered(reader, name))


def tell(folder: RunFolder, options: Options) -> int:
    """Tell the outcome of a judged run on stdout and return its exit status."""
    with open_run(folder) as reader:
        content = rendered(reader, "json" if options.as_json else "text")
        run = reader.run()
    assert run is not None, "the run was just judged"
    write_text(content.decode("utf-8"))
    if not options.is_quiet:
        say(f"run folder: {escape(str(folder.path))}")
    return run.verdict.exit_status


def open_target(config: AuditConfig, options: Options) -> Target:
    """Build the target that is asked for.

    Raises:
        ConfigError: A server at a URL may not be probed unasked, or a key does not fit.
        MissingExtraError: The reference engine's packages are not installed.
        StartRefusedError: The engine's start check refuses the configuration.
    """
    if config.target != REFERENCE:
        names_model = config.model != AuditConfig().model or "model" in {
            **options.settings,
            **options.flags,
        }
        return open_server(config, is_authorised=options.is_authorised, names_model=names_model)
    try:
        from engine.target import reference_target
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ENGINE_PACKAGES:
            raise
        raise MissingExtraError("the reference engine", str(error.name)) from None
    target: Target = reference_target(config)
    return target


def refuse_unbuilt(config: AuditConfig) -> None:
    """Refuse settings whose part does not exist yet."""
    if config.keep_text != "all":
        raise not_built(f"--keep-text {config.keep_text}")


def refuse_unknown_names(config: AuditConfig) -> None:
    """Refuse a fault or model that is nowhere, before the packages of the engine are wanted.

    Raises:
        UnknownNameError: With the nearest name.
        EngineError: The model is a folder that is not there.
    """
    if config.target == REFERENCE:
        fault_plan(config.fault, config.fixes)
        check_model(config.model)


def count_tokens(target: Target, text: str) -> int:
    """Return the length of a plain prompt in the target's tokens.

    A target that does not count is planned for with 4 characters a token, which is known to be
    rough: usage numbers tell the true lengths afterwards.
    """
    counted = target.count_tokens(text)
    return counted if counted is not None else max(1, len(text) // 4)


def _spent_tokens(record: RequestRecord) -> int:
    """Return what a request cost, at most: what the server says, else what was asked for."""
    prompt = record.prompt_tokens_sent or record.prompt_tokens or 0
    if record.completion_tokens is not None:
        return prompt + record.completion_tokens
    if record.output_token_ids is not None:
        return prompt + len(record.output_token_ids)
    return prompt + (record.max_tokens or 0) * record.is_examined

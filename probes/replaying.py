"""Replays the answers of a wave that has just ended: recorded now, judged later.

Only what can say something and what can be afforded: answered requests with at least
`REPLAY_OUTPUT_MIN` tokens whose ids and log-probabilities came back, other than fills. One replay
is one prefill of prompt and answer, no decode.
"""

from collections.abc import Sequence
from typing import Protocol

from kvaudit.records import Outcome, RequestRecord, Role
from kvaudit.target import PlannedRequest, Replay, Replayer, Target, Wave, with_replay
from probes.runner import Recorder, run_wave

REPLAY_OUTPUT_MIN = 16
# About 100 s of prefill on two CPU cores for a small model; a quick profile needs a tenth.
REPLAY_TOKENS_MAX = 500_000
REPLAYED_ROLES = frozenset({Role.CALIBRATION, Role.CONTROL, Role.TRIGGER})


class ReplayRecorder(Recorder, Protocol):
    """Where a run writes what happens, replays included."""

    def replay(self, replay: Replay) -> None:
        """Note what scoring an answer again gave."""
        ...


def run_and_replay(
    target: Target,
    wave: Wave,
    recorder: ReplayRecorder,
    *,
    earlier: Sequence[RequestRecord] = (),
    tokens_max: int = REPLAY_TOKENS_MAX,
) -> list[RequestRecord]:
    """Send one wave as `run_wave` does, then replay its answers.

    Args:
        target: A target that is no Replayer gets no replays, and that is recorded as the reason.
        wave: What is sent.
        recorder: Where it is written.
        earlier: Records of the run so far: what they cost is taken off the budget.
        tokens_max: Prompt and output tokens that may be replayed in the whole run.
    """
    records = run_wave(target, wave, recorder)
    planned = {request.request_id: request for request in wave.requests}
    spent = sum(_tokens(record) for record in earlier if record.replay_logprobs is not None)
    done = []
    for record in records:
        if record.role not in REPLAYED_ROLES or record.outcome is not Outcome.ANSWERED:
            done.append(record)
            continue
        is_affordable = spent + _tokens(record) <= tokens_max
        replay = _replay(target, planned[record.request_id], record, is_affordable=is_affordable)
        recorder.replay(replay)
        done.append(with_replay(record, replay))
        spent += _tokens(record) * (replay.logprobs is not None)
    return done


def _replay(
    target: Target, planned: PlannedRequest, record: RequestRecord, *, is_affordable: bool
) -> Replay:
    reason = _obstacle(target, planned, record)
    if reason is None and not is_affordable:
        reason = "the run's budget for replays is spent"
    if reason is not None:
        return Replay(request_id=record.request_id, reason=reason)
    assert isinstance(target, Replayer), "an obstacle otherwise"
    scores = target.replay_logprobs(planned, record.output_token_ids or ())
    if scores is None:
        return Replay(request_id=record.request_id, reason="the server did not score the answer")
    return Replay(request_id=record.request_id, logprobs=tuple(scores))


def _obstacle(target: Target, planned: PlannedRequest, record: RequestRecord) -> str | None:
    if not isinstance(target, Replayer):
        return "the target can't replay"
    if record.output_token_ids is None:
        return "the answer carries no token ids"
    if record.output_logprobs is None:
        return "the answer carries no log-probabilities"
    if len(record.output_logprobs) != len(record.output_token_ids):
        return "ids and log-probabilities of the answer differ in number"
    if len(record.output_token_ids) < REPLAY_OUTPUT_MIN:
        return f"the answer has fewer than {REPLAY_OUTPUT_MIN} tokens"
    return target.replay_obstacle(planned)


def _tokens(record: RequestRecord) -> int:
    return (record.prompt_tokens_sent or 0) + len(record.output_token_ids or ())

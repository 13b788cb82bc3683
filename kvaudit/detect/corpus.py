"""Corpus: what a detector is given, and which request could have passed text to which.

A detector sees records, the never-sent twins of their fills, and what the server said of itself.
It sees no trace of an engine and no plan.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvaudit.detect.answers import is_right
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role
from kvaudit.serverfacts import ServerFacts
from kvaudit.target import PlannedRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One run, as detectors see it.

    Attributes:
        records: All requests of the run, in the order of the plan.
        twins: Requests minted like the fills and sent to no one: what answers share with them is
            chance.
        facts: What the server said of itself.
    """

    records: tuple[RequestRecord, ...]
    twins: tuple[PlannedRequest, ...] = ()
    facts: ServerFacts = field(default_factory=ServerFacts)

    @property
    def sinks(self) -> tuple[RequestRecord, ...]:
        """Requests with any output text, whatever their outcome: a cut answer can leak too."""
        return tuple(record for record in self.records if record.output_text)

    @property
    def calibration(self) -> tuple[RequestRecord, ...]:
        """Answered solo requests from before the first fill: nothing could leak into them.

        A target is calibrated in up to two forms, as a text to continue and as an instruction;
        these are the requests of the form that it answers better.
        """
        by_form: dict[str, list[RequestRecord]] = defaultdict(list)
        for record in self.records:
            if (
                record.role is Role.CALIBRATION
                and record.outcome is Outcome.ANSWERED
                and record.expected is not None
            ):
                by_form[record.endpoint].append(record)
        forms = list(by_form.values())
        if not forms:
            return ()
        best = max(forms, key=_recall)
        return tuple(best)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """What one detector found, and how it does on the null.

    Attributes:
        rule_id: The rule it serves.
        evidence: Everything seen, strongest first within a sink; the judge weighs it.
        examined: Requests to which the rule could be applied.
        available: Whether it could be applied at all.
        reason: Why not, or what to know.
        null_alarms: Alarms on the null; None without one.
        null_trials: Size of the null.
    """

    rule_id: str
    evidence: tuple[Evidence, ...] = ()
    examined: int = 0
    available: bool = True
    reason: str = ""
    null_alarms: int | None = None
    null_trials: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Calibration answers, each handed to another tenant's request on paper.

    Attributes:
        corpus: The requests with their swapped answers.
        giver_of: Request whose answer it really is, by the id of the request that was given it.
    """

    corpus: Corpus
    giver_of: dict[str, str]


def is_foreign(source: RequestRecord | PlannedRequest, sink: RequestRecord) -> bool:
    """Whether the two belong to different owners: tenants of one organisation are not foreign."""
    return (source.organisation or source.tenant) != sink.owner


def could_reach(source: RequestRecord, sink: RequestRecord) -> bool:
    """Whether the source was on its way before the sink's last byte; unknown times may be."""
    if source.sent_unix_ns is None or sink.ended_unix_ns is None:
        return True
    return source.sent_unix_ns <= sink.ended_unix_ns


def first_sent(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Order by the time of sending; without a time the order given stays and comes last."""
    ranked = list(records)
    latest = max((record.sent_unix_ns or 0 for record in ranked), default=0) + 1
    return sorted(
        ranked,
        key=lambda record: record.sent_unix_ns if record.sent_unix_ns is not None else latest,
    )


def swap_on_paper(corpus: Corpus) -> Swap:
    """Hand each calibration answer to the next calibration request of a foreign tenant.

    What a detector makes of the result measures its sensitivity without any fault: the text is
    known to be another tenant's. Times are dropped, so that every giver could reach its taker.
    """
    givers = corpus.calibration
    swapped: list[RequestRecord] = []
    giver_of: dict[str, str] = {}
    for index, taker in enumerate(givers):
        giver = _next_foreign(givers, index)
        if giver is None:
            continue
        swapped.append(
            replace(
                taker,
                role=Role.OBSERVED,
                output_text=giver.output_text,
                sent_unix_ns=None,
                ended_unix_ns=None,
            )
        )
        giver_of[taker.request_id] = giver.request_id
    return Swap(
        corpus=Corpus(records=tuple(swapped), twins=corpus.twins, facts=corpus.facts),
        giver_of=giver_of,
    )


def _recall(records: Sequence[RequestRecord]) -> float:
    return sum(is_right(record) for record in records) / len(records)


def _next_foreign(records: Sequence[RequestRecord], index: int) -> RequestRecord | None:
    for step in range(1, len(records)):
        other = records[(index + step) % len(records)]
        if is_foreign(other, records[index]):
            return other
    return None

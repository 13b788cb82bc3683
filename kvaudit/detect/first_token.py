"""KVA407: unrelated prompts get the same first token, though another one would be right for each.

A decode role that starts on a placeholder in the place of prefill's first token begins every answer
alike. Calibration tells how often each first token is right on this target; a group of wrong
beginnings is evidence when so many alike would be an accident.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from kvaudit.detect.answers import is_right
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.null import before_first_fill
from kvaudit.findings import Evidence
from kvaudit.records import Outcome, RequestRecord, Role

RULE_ID = "KVA407"
GROUP_MIN = 3
CHANCE_MAX = 1e-3
BEGINNING = 2  # letters or digits that make a beginning right
RIGHT_MIN = 0.8  # of calibration answers begin right


def find_same_first_tokens(corpus: Corpus) -> Detection:
    """Return evidence for each answer that begins wrongly, as too many others do."""
    null = [record for record in before_first_fill(corpus) if record.expected is not None]
    right = [record for record in null if _begins_right(record)]
    if not null:
        return Detection(
            rule_id=RULE_ID, available=False, reason="no calibration request was answered"
        )
    if len(right) / len(null) < RIGHT_MIN:
        return Detection(
            rule_id=RULE_ID,
            available=False,
            reason=f"alone {len(right)} of {len(null)} answers begin with what is asked for,"
            f" under {RIGHT_MIN:.0%}",
        )
    known = {record.request_id for record in null}
    asked = [
        record
        for record in corpus.records
        if record.outcome is Outcome.ANSWERED
        and record.expected is not None
        and record.role is not Role.FILL
        and record.request_id not in known
        and first_of(record) is not None
    ]
    usual = Counter(first_of(record) for record in right)
    return Detection(
        rule_id=RULE_ID,
        evidence=tuple(_alike(asked, usual, len(right))),
        examined=len(asked),
        null_alarms=len(list(_alike(null, usual, len(right)))),
        null_trials=len(null),
    )


def first_of(record: RequestRecord) -> str | None:
    """Return what an answer begins with: the id of its first token, else its first word."""
    if record.output_token_ids:
        return f"token {record.output_token_ids[0]}"
    words = (record.output_text or "").split(maxsplit=1)
    return words[0].casefold() if words else None


def _alike(
    asked: Iterable[RequestRecord], usual: Counter[str | None], trials: int
) -> Iterable[Evidence]:
    groups: dict[str | None, list[RequestRecord]] = defaultdict(list)
    for record in asked:
        if not _begins_right(record):
            groups[first_of(record)].append(record)
    for first, group in groups.items():
        # The share of healthy answers that begin so, with one more seen than was seen.
        share = (usual[first] + 1) / (trials + 2)
        chance = min(1.0, len(groups) * share ** (len(group) - 1))
        if len(group) >= GROUP_MIN and chance < CHANCE_MAX:
            for record in group:
                yield _evidence(record, first or "", len(group), chance)


def _begins_right(record: RequestRecord) -> bool:
    """Whether the answer holds what is asked for, or at least begins with it."""
    expected = _letters(record.expected or "")[:BEGINNING]
    return is_right(record) or _letters(record.output_text or "").startswith(expected)


def _letters(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _evidence(record: RequestRecord, first: str, size: int, chance: float) -> Evidence:
    return Evidence(
        rule_id=RULE_ID,
        sink_request_id=record.request_id,
        sink_tenant=record.tenant,
        score=float(size),
        chance=chance,
        details={"first": first, "answers_alike": size, "stratum": record.stratum},
    )

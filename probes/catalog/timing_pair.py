"""Scenario `timing-pair`: does the first token tell whether somebody else sent this prefix?

For each pair another tenant sends one secret prefix and the asking tenant sends one of its own.
Then the asking tenant sends three prompts of one length, one after another in random order: on the
other's prefix, on a prefix that nobody sent, and on its own earlier one, the positive control. Only
where a prefix cache is on, or may be. Stands for the probe shape "timing pair" (cases C032, C142,
C143).

No stratum of it is planned: an answer of two tokens clears nothing.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from kvaudit.records import Role
from probes.geometry import geometry_of
from probes.notes import note
from probes.slots import (
    PlanContext,
    Slot,
    SlotWave,
)

OTHERS, NOBODYS, OWN = "prefix-of-another", "prefix-of-nobody", "own-prefix"
PAIRS = {"quick": 15, "standard": 50, "deep": 150}
PROMPT_TOKENS = 1024
PROMPT_TOKENS_MIN = 256  # shorter prefixes save no time to speak of
PART_OF_LIMIT = 4  # what a pair leaves in a small pool must not push out its own prefixes
PREFIX_SHARE = 0.6  # of the prompt; the rest holds what is asked for
SAMPLE_NOTES = 8  # what a prefix's characters are counted by
ANSWER_TOKENS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingPair:
    """The scenario as a SlotPlan; the profile decides the number of pairs."""

    name: str = "timing-pair"

    def strata(self, context: PlanContext) -> tuple[str, ...]:
        """Return none: what is timed here decides no verdict."""
        del context
        return ()

    def waves(self, context: PlanContext) -> Iterator[SlotWave]:
        """Yield every wave in order."""
        limit = geometry_of(context.facts, answer_tokens=ANSWER_TOKENS).limit
        tokens = min(PROMPT_TOKENS, limit // PART_OF_LIMIT)
        if context.facts.prefix_cache is False or tokens < PROMPT_TOKENS_MIN:
            return
        length = int(PREFIX_SHARE * tokens * _characters_of_a_token(context))
        for number in range(PAIRS[context.config.profile]):
            rng = random.Random(f"{context.root}/{self.name}/{number}")
            asker = number % context.config.tenants
            pair = _Pair(number=number, tokens=tokens, prefix_length=length, rng=rng)
            yield SlotWave(
                slots=pair.slots(asker, (asker + 1) % context.config.tenants), concurrency=1
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Makes the slots of one pair; the prefix's length is in characters."""

    number: int
    tokens: int
    prefix_length: int
    rng: random.Random

    def slots(self, asker: int, other: int) -> tuple[Slot, ...]:
        """Return what leaves the two prefixes, then the three timed prompts in random order."""
        others, nobodys, own = self._prefix(), self._prefix(), self._prefix()
        timed = [
            self._slot(OTHERS, asker, others, role=Role.TRIGGER, stratum=OTHERS),
            self._slot(NOBODYS, asker, nobodys, role=Role.CONTROL, stratum=NOBODYS),
            self._slot(OWN, asker, own, role=Role.CONTROL, stratum=OWN),
        ]
        self.rng.shuffle(timed)
        return (
            self._slot("leave-anothers", other, others, role=Role.FILL),
            self._slot("leave-own", asker, own, role=Role.FILL),
            *timed,
        )

    def _slot(self, name: str, tenant: int, prefix: str, *, role: Role, stratum: str = "") -> Slot:
        return Slot(
            name=f"{self.number:04}-{name}",
            tenant=tenant,
            role=role,
            stratum=stratum,
            tokens=self.tokens,
            max_tokens=ANSWER_TOKENS,
            block=self.number,
            opening=prefix,
        )

    def _prefix(self) -> str:
        """Return notes that nobody else has, cut at no token: lengths are made exact behind it."""
        text = ""
        while len(text) < self.prefix_length:
            text = f"{text} {note(self.rng)}".lstrip()
        return text[: self.prefix_length]


def _characters_of_a_token(context: PlanContext) -> float:
    """Return how many characters of notes make one of the target's tokens."""
    rng = random.Random(0)
    sample = " ".join(note(rng) for _ in range(SAMPLE_NOTES))
    return len(sample) / context.count_tokens(sample)

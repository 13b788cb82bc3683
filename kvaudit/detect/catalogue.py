"""The detectors of a live run, one list by hand."""

from collections.abc import Callable
from dataclasses import dataclass

from kvaudit.detect.accounting import find_over_capacity, find_prompt_tokens_mismatch
from kvaudit.detect.canaries import find_canaries
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.recall import find_lost_nonces
from kvaudit.detect.runs import find_runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """One rule's detector.

    Attributes:
        rule_id: The rule.
        find: Pure function from a run to what was seen in it.
        reads_content: Whether it judges the answer's text: one such oracle of measured
            sensitivity is what a clean verdict rests on.
        can_swap: Whether a swap of answers on paper measures its sensitivity.
    """

    rule_id: str
    find: Callable[[Corpus], Detection]
    reads_content: bool
    can_swap: bool


DETECTORS: tuple[Detector, ...] = (
    Detector(
        rule_id="KVA301", find=find_prompt_tokens_mismatch, reads_content=False, can_swap=False
    ),
    Detector(rule_id="KVA302", find=find_over_capacity, reads_content=False, can_swap=False),
    Detector(rule_id="KVA401", find=find_lost_nonces, reads_content=True, can_swap=True),
    Detector(rule_id="KVA101", find=find_canaries, reads_content=True, can_swap=True),
    Detector(rule_id="KVA201", find=find_runs, reads_content=True, can_swap=True),
)

"""The detectors of a live run, one list by hand."""

from collections.abc import Callable
from dataclasses import dataclass

from kvaudit.detect.accounting import find_over_capacity, find_prompt_tokens_mismatch
from kvaudit.detect.canaries import find_canaries
from kvaudit.detect.company import find_lost_in_company
from kvaudit.detect.corpus import Corpus, Detection
from kvaudit.detect.first_token import find_same_first_tokens
from kvaudit.detect.folded import find_folded_canaries
from kvaudit.detect.incoherent import FIND_INCOHERENT
from kvaudit.detect.prefix_timing import find_prefix_times
from kvaudit.detect.recall import find_lost_nonces
from kvaudit.detect.replay import find_replay_gaps
from kvaudit.detect.replies import find_same_replies
from kvaudit.detect.runs import find_runs
from kvaudit.detect.sharing import find_shared_cache_hits
from kvaudit.detect.timing import find_early_first_tokens


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
    Detector(rule_id="KVA303", find=find_early_first_tokens, reads_content=False, can_swap=False),
    Detector(rule_id="KVA304", find=find_shared_cache_hits, reads_content=False, can_swap=False),
    Detector(rule_id="KVA401", find=find_lost_nonces, reads_content=True, can_swap=True),
    *(
        Detector(rule_id=rule_id, find=find, reads_content=False, can_swap=False)
        for rule_id, find in FIND_INCOHERENT.items()
    ),
    Detector(rule_id="KVA406", find=find_lost_in_company, reads_content=False, can_swap=False),
    Detector(rule_id="KVA407", find=find_same_first_tokens, reads_content=False, can_swap=False),
    Detector(rule_id="KVA408", find=find_replay_gaps, reads_content=False, can_swap=False),
    Detector(rule_id="KVA601", find=find_prefix_times, reads_content=False, can_swap=False),
    Detector(rule_id="KVA101", find=find_canaries, reads_content=True, can_swap=True),
    Detector(rule_id="KVA102", find=find_folded_canaries, reads_content=True, can_swap=True),
    Detector(rule_id="KVA203", find=find_same_replies, reads_content=True, can_swap=True),
    Detector(rule_id="KVA201", find=find_runs, reads_content=True, can_swap=True),
)

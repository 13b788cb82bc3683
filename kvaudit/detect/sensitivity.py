"""How much each oracle sees, measured without any fault: swap on paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kvaudit.detect.answers import is_right
from kvaudit.detect.catalogue import DETECTORS, Detector
from kvaudit.detect.corpus import Corpus, Detection, Swap, swap_on_paper
from kvaudit.detect.replies import is_long_enough
from kvaudit.findings import Evidence
from kvaudit.records import RequestRecord

CHANCE_BAR = 1e-6  # one exposure with a smaller chance of accident convicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Planted swaps that an oracle flagged, of so many."""

    hits: int
    trials: int

    @property
    def share(self) -> float:
        """Observed share; 0 without trials."""
        return self.hits / self.trials if self.trials else 0.0


def measure_sensitivities(
    corpus: Corpus, detections: Mapping[str, Detection]
) -> dict[str, Sensitivity]:
    """Measure by swap on paper: the share of swapped answers that each oracle flags."""
    swap = swap_on_paper(corpus)
    measured = {}
    for detector in DETECTORS:
        if not detector.can_swap or not detections[detector.rule_id].available:
            continue
        flagged = set()
        # A reply given twice is seen beside the request that it was made for.
        is_twice = detector.rule_id == "KVA203"
        given = _copied(swap, corpus.calibration) if is_twice else swap.corpus
        for item in _find_swapped(detector, given):
            source, giver = item.source, swap.giver_of.get(item.sink_request_id)
            if source is None or source.request_id.removesuffix("/own") == giver:
                flagged.add(item.sink_request_id)
        trials = len(swap.giver_of)
        if is_twice:  # short replies are alike by right, so the rule leaves them out
            trials = sum(is_long_enough(record) for record in swap.corpus.records)
        measured[detector.rule_id] = Sensitivity(hits=len(flagged), trials=trials)
    return measured


def _find_swapped(detector: Detector, swapped: Corpus) -> tuple[Evidence, ...]:
    """Judge swapped answers; lost nonces need the calibration that the swap has replaced."""
    if detector.rule_id == "KVA401":
        lost = [record for record in swapped.records if not is_right(record)]
        return tuple(
            Evidence(rule_id="KVA401", sink_request_id=item.request_id, sink_tenant=item.tenant)
            for item in lost
            if item.expected is not None
        )
    if detector.rule_id == "KVA102":  # what stands there unchanged is KVA101's
        swapped = replace(swapped, records=tuple(_disguised(item) for item in swapped.records))
    evidence = detector.find(swapped).evidence
    return tuple(item for item in evidence if is_under_bar(item))


def _disguised(record: RequestRecord) -> RequestRecord:
    """Return the record with its answer in lower case and without hyphens."""
    return replace(record, output_text=(record.output_text or "").lower().replace("-", " "))


def _copied(swap: Swap, calibration: Sequence[RequestRecord]) -> Corpus:
    """Return the swapped requests beside those that really got the answers."""
    originals = [replace(item, request_id=f"{item.request_id}/own") for item in calibration]
    return replace(swap.corpus, records=(*swap.corpus.records, *originals))


def is_under_bar(item: Evidence) -> bool:
    """Whether the chance of an accident is computed and small enough to convict."""
    return item.chance is not None and item.chance < CHANCE_BAR

"""All rules that compare the texts of different tenants, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvaudit.detect.scored.naive import find_matches
from kvaudit.forensics.load import Ingested
from kvaudit.forensics.metadata import RuleOutcome
from kvaudit.scan.config import ScanConfig
from kvaudit.scan.foreign import foreign_text
from kvaudit.scan.texts import TableTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What the comparison found.

    Attributes:
        outcomes: One a rule.
        q_values: Share of false findings, by `id()` of the evidence; only where it was counted.
    """

    outcomes: tuple[RuleOutcome, ...]
    q_values: Mapping[int, float]


def compare_texts(config: ScanConfig, ingested: Ingested, folder: Path) -> Compared:
    """Compare the texts of different tenants."""
    texts = TableTexts(ingested.table)
    matches = find_matches(
        texts, skew_us=ingested.skew_us, use_replicas=config.ingest.replica_field is not None
    )
    foreign = foreign_text(texts, matches)
    return Compared(outcomes=foreign.outcomes, q_values=foreign.q_values)

"""All rules that compare the texts of different tenants, in order."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvaudit.detect.scored.char_model import shipped_model
from kvaudit.detect.scored.public_text import shipped_public_text
from kvaudit.detect.scored.score import Scorer
from kvaudit.detect.semijoin.find import find_matches
from kvaudit.detect.semijoin.texts import Engine, SemiJoinSettings
from kvaudit.forensics.load import Ingested
from kvaudit.forensics.metadata import RuleOutcome
from kvaudit.scan.bleed import bled_values
from kvaudit.scan.canaries import canaries_in_logs
from kvaudit.scan.config import ScanConfig
from kvaudit.scan.foreign import foreign_text
from kvaudit.scan.misdelivered import other_prompts, same_replies
from kvaudit.scan.texts import TableTexts

SEMIJOIN = "semijoin"  # folder of what the semi-join keeps between its steps


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
    """Compare the texts of different tenants; `folder` takes what does not fit in memory."""
    texts = TableTexts(ingested.table)
    work = folder / SEMIJOIN
    matches = find_matches(texts, work, _settings(config, ingested))
    scorer = Scorer(shipped_model(), shipped_public_text())
    foreign = foreign_text(texts, matches, scorer)
    examined, calibration, skew_us = foreign.examined, foreign.calibration, ingested.skew_us
    outcomes = (
        *canaries_in_logs(texts, config.canaries),
        *foreign.outcomes,
        same_replies(texts, foreign.weighed, calibration, examined=examined),
        other_prompts(texts, scorer, calibration, skew_us=skew_us, examined=examined),
        bled_values(texts, skew_us=skew_us, examined=examined),
    )
    shutil.rmtree(work, ignore_errors=True)
    return Compared(outcomes=outcomes, q_values=foreign.q_values)


def _settings(config: ScanConfig, ingested: Ingested) -> SemiJoinSettings:
    return SemiJoinSettings(
        engine=Engine(config.engine or Engine.DUCKDB),
        skew_us=ingested.skew_us,
        use_replicas=config.ingest.replica_field is not None,
    )

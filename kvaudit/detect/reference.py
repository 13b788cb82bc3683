"""What oracles see that no swap of answers on paper can show: measured on the reference engine.

The values are a data file that `tests/bench/bench_sensitivity.py` writes; nobody edits it by hand.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

FILE_NAME = "reference_sensitivity.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSensitivity:
    """One rule's measured sensitivity.

    Attributes:
        hits: Contaminated requests of a planted fault that it flagged, of so many `trials`.
        fault, model, seed: What was run to measure it.
    """

    hits: int
    trials: int
    fault: str
    model: str
    seed: int

    @property
    def reason(self) -> str:
        """Where the value comes from, for a report."""
        return (
            f"sensitivity as measured on the reference engine: {self.hits} of {self.trials}, sent"
            f" one after another, with fault `{self.fault}`, model `{self.model}`, seed {self.seed}"
        )


@cache
def reference_sensitivities() -> dict[str, ReferenceSensitivity]:
    """Return the measured sensitivities by rule."""
    text = resources.files("kvaudit.detect").joinpath(FILE_NAME).read_text(encoding="utf-8")
    return {
        rule_id: ReferenceSensitivity(**measured)
        for rule_id, measured in json.loads(text)["rules"].items()
    }

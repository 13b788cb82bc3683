"""What one log scan reads and how it judges, checked once."""

from dataclasses import asdict, dataclass, field
from typing import Any

from kvaudit.canary import Canary
from kvaudit.errors import ConfigError, UnknownNameError
from kvaudit.forensics.options import IngestOptions

ENGINES = ("duckdb", "polars")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanConfig:
    """Everything that decides what a scan says.

    Attributes:
        logs: Files, folders, globs; `-` is standard input.
        ingest: How the logs are read.
        pool_tokens: Capacity that a prompt must fit into; None = from the log itself.
        context_tokens: Advertised context, in tokens.
        min_coverage: Share of the answers that must be examinable for a clean verdict.
        engine: `duckdb` or `polars`: which one joins the texts; None = the faster.
        canaries: Canaries that tenants planted, to be looked for in the answers.
        canary_file: Where they were read from.
    """

    logs: tuple[str, ...]
    ingest: IngestOptions = field(default_factory=IngestOptions)
    pool_tokens: int | None = None
    context_tokens: int | None = None
    min_coverage: float = 0.99
    engine: str | None = None
    canaries: tuple[Canary, ...] = ()
    canary_file: str | None = None

    def check(self) -> None:
        """Raise ConfigError for the first value that does not fit."""
        self.ingest.check()
        for flag, value in (("pool-tokens", self.pool_tokens),
                            ("context-tokens", self.context_tokens)):  # fmt: skip
            if value is not None and value <= 0:
                raise ConfigError(f"`--{flag}` is {value}", hint="a capacity is above 0")
        if not 0 <= self.min_coverage <= 1:
            raise ConfigError(
                f"`--min-coverage` is {self.min_coverage}", hint="choose a share from 0 to 1"
            )
        if self.engine is not None and self.engine not in ENGINES:
            raise UnknownNameError("engine", self.engine, ENGINES)

    def as_json(self) -> dict[str, Any]:
        """Return the configuration as JSON values."""
        made = asdict(self)
        made["logs"] = list(self.logs)
        made["ingest"] = self.ingest.as_json()
        return made

"""When an audit may end before its plan: it has convicted, or has bounded what was to be bounded.

Looks come after 7 blocks and each time that doubles. Conviction is by exact evidence and clearance
by counts without a detection, so looking changes neither error.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvaudit.cli.session import Session
from kvaudit.config import AuditConfig
from kvaudit.findings import Verdict
from kvaudit.serverfacts import ServerFacts
from kvaudit.store.journal import read_journal
from kvaudit.target import Wave
from probes.plan import PlanContext, Probe

SCENARIO = "blocks"
FIRST_LOOK = 7


def with_planned_blocks(config: AuditConfig, strata: Sequence[str]) -> AuditConfig:
    """Return the configuration with as many blocks as `--target-rate` needs.

    Never fewer than the profile's; what the user or an earlier run has set stays.
    """
    if config.target_rate is None or config.blocks is not None or not strata:
        return config
    from kvaudit.stats_blocks import planned_blocks  # loads scipy
    from probes.catalog.blocks import BLOCKS

    needed = planned_blocks(
        config.target_rate,
        confidence=config.confidence,
        strata=len(strata),
        replicas=config.replicas,
    )
    return replace(config, blocks=max(needed, BLOCKS[config.profile]))


def is_look_due(probe: Probe, wave: Wave) -> bool:
    """Return whether to look before this wave: it begins a block after 7, 14, 28, ... others."""
    if probe.name != SCENARIO or wave.scenario != SCENARIO:
        return False
    done = min(request.block for request in wave.requests)
    is_first = any("fill-1" in request.request_id for request in wave.requests)
    blocks, rest = divmod(done, FIRST_LOOK)
    return is_first and not rest and blocks > 0 and blocks & (blocks - 1) == 0


def early_verdict(
    session: Session, context: PlanContext, strata: Sequence[str], facts: ServerFacts
) -> str | None:
    """Return why the run may end here, in words; None if it goes on."""
    from kvaudit.audit import judge_run  # loads scipy and numba

    contents = read_journal(session.folder.journal_path)
    run = judge_run(
        records=contents.records,
        twins=contents.twins,
        config=context.config,
        strata=strata,
        facts=facts,
        run_id=session.header.run_id,
    )
    if run.verdict is Verdict.CONTAMINATED:
        return f"contaminated: {run.reasons[0]}"
    if run.verdict is Verdict.CLEAN and context.config.target_rate is not None:
        return f"every stratum is bounded by {context.config.target_rate:g}"
    return None

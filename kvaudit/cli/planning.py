"""What a plan will cost, told before its first token is spent."""

from collections.abc import Sequence

from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.config import AuditConfig
from probes.plan import EDGE, PlanContext, PlanCost, Probe, shared_cost

TRIALS_FOR_CLEAN = 7
TOKENS_PER_PRICE = 1_000_000


def tell_plan(
    probes: Sequence[Probe],
    context: PlanContext,
    *,
    is_dry_run: bool,
    as_json: bool,
    is_quiet: bool,
) -> PlanCost:
    """Tell what each scenario and all together cost at most; a dry run tells it on stdout.

    Args:
        probes: The scenarios, those that come before the plan included.
        context: Config, facts and the target's way to count tokens.
        is_dry_run: Nothing will be sent.
        as_json: A dry run's plan is told as JSON.
        is_quiet: Nothing is told on stderr.
    """
    costs = [(probe, probe.cost(context)) for probe in probes]
    total = PlanCost(requests=0, prompt_tokens=0, output_tokens=0)
    for _, cost in costs:
        total += cost
    shared = shared_cost([probe for probe, _ in costs if probe.name != EDGE], context)
    total -= shared
    config = context.config
    if is_dry_run and as_json:
        items = [
            {"scenario": probe.name, "strata": list(probe.strata(context))}
            | _cost_item(cost, config)
            for probe, cost in costs
        ]
        write_json({"schema": 1, "command": "audit --dry-run", "items": items})
        return total
    lines = [f"{escape(probe.name)}: {_cost_text(cost, config)}" for probe, cost in costs]
    if len(costs) > 1:
        once = ", since calibration is sent once" if shared.requests else ""
        lines.append(f"all together: {_cost_text(total, config)}{once}")
    lines += _notes(config)
    if is_dry_run:
        write_text("\n".join(f"plan: {line}" for line in lines) + "\n")
    elif not is_quiet:
        for line in lines:
            say(f"plan: {line}")
    return total


def money(cost: PlanCost, config: AuditConfig) -> float | None:
    """Return what a plan costs at most, in the prices' currency; None without prices."""
    if config.price_in is None and config.price_out is None:
        return None
    spent = cost.prompt_tokens * (config.price_in or 0) + cost.output_tokens * (
        config.price_out or 0
    )
    return spent / TOKENS_PER_PRICE


def _notes(config: AuditConfig) -> list[str]:
    notes = []
    if config.trials is not None and config.trials < TRIALS_FOR_CLEAN:
        notes.append(
            f"note: with {config.trials} trial{'s' * (config.trials != 1)} the verdict can't be"
            f" `clean`; it needs at least {TRIALS_FOR_CLEAN}"
        )
    limits = [
        f"--max-tokens {config.max_tokens:,}" if config.max_tokens is not None else "",
        f"--max-time {config.max_time_s:g} s" if config.max_time_s is not None else "",
    ]
    if any(limits):
        notes.append(f"stops at {' or '.join(filter(None, limits))}, whatever the plan says")
    return notes


def _cost_item(cost: PlanCost, config: AuditConfig) -> dict[str, int | float]:
    item: dict[str, int | float] = {
        "requests": cost.requests,
        "prompt_tokens": cost.prompt_tokens,
        "output_tokens": cost.output_tokens,
    }
    price = money(cost, config)
    return item if price is None else item | {"price": round(price, 6)}


def _cost_text(cost: PlanCost, config: AuditConfig) -> str:
    price = money(cost, config)
    return (
        f"{cost.requests:,} requests, at most {cost.prompt_tokens:,} prompt"
        f" and {cost.output_tokens:,} output tokens"
        + ("" if price is None else f", at most {price:,.2f} at the prices given")
    )

"""Flags of `kvaudit serve` -> EngineConfig."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from engine.config import EngineConfig, sized_for, with_needs
from engine.faults import fault_plan


class ChosenEngine(NamedTuple):
    """A configuration, and the parts that its fault switched on."""

    config: EngineConfig
    switched: tuple[str, ...]


def engine_config(settings: Mapping[str, Any]) -> ChosenEngine:
    """Return the configuration that the settings describe.

    Args:
        settings: Fields of EngineConfig, and `fault` and `fix`; what is missing is the model's
            default.

    Raises:
        ConfigError: A size or name does not fit.
        UnknownNameError: There is no such fault or fix.
    """
    plan = fault_plan(settings.get("fault"), settings.get("fix", ()))
    fields = {key: value for key, value in settings.items() if key not in ("fault", "fix")}
    sized = replace(sized_for(settings.get("model", EngineConfig().model)), **fields)
    return ChosenEngine(*with_needs(sized, plan))

"""state_key: two engines have one key if nothing that they do from here on can differ.

The whole object graph goes in, so that a part that is added later is not forgotten. Left out is
what no later act depends on: configuration, models, clocks, logs, and the history of reads. Time
counts only as far as somebody waits for it.
"""

import dataclasses
from collections import deque
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch

from engine.engine import Engine

# Attributes that decide nothing later on, by class and name.
_LEFT_OUT = {
    ("Engine", "config"), ("Engine", "clock"), ("Engine", "reports"), ("Engine", "_model"),
    ("Engine", "_rng"), ("Engine", "_did"), ("Role", "config"), ("Role", "model"),
    ("Role", "generator"), ("Role", "trace"), ("PrefillWorker", "_config"),
    ("PrefillWorker", "_clock"), ("PrefillWorker", "_reports"), ("PrefillWorker", "_role"),
    ("PrefillWorker", "_faults"), ("PrefillWorker", "_wire"), ("DecodeWorker", "_config"),
    ("DecodeWorker", "_clock"), ("DecodeWorker", "_reports"), ("DecodeWorker", "_role"),
    ("DecodeWorker", "_faults"), ("DecodeWorker", "_wire"), ("Wire", "_source"),
    ("Wire", "_destination"), ("Wire", "_trace"), ("Wire", "_faults"), ("Wire", "_turn"),
    ("PrefixCache", "_pool"), ("PrefixCache", "_faults"), ("KVCache", "_scratch"),
    ("PageTrace", "_reads"), ("PageTrace", "_keys"), ("PageTrace", "_prompts"),
    ("DecodeLeg", "published_ns"), ("EndEvent", "at_ns"), ("AdmittedEvent", "at_ns"),
    ("PrefillLeg", "finish_reason"),
}  # fmt: skip


def state_key(engine: Engine) -> Hashable:
    """Return the key of an engine's state."""
    late = tuple(
        ordinal
        for ordinal, leg in engine.decode._legs.items()
        if engine.decode._is_waiting(leg) and engine.decode._is_late(leg)
    )
    return _frozen(engine, engine.wire._turn), late


def _frozen(value: Any, turn: int) -> Hashable:
    if value is None or isinstance(value, int | str | bytes | float):
        return value
    kind = type(value)
    if isinstance(value, Enum):
        held: Hashable = value.value
        return held
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, Mapping):
        return tuple((_frozen(key, turn), _frozen(held, turn)) for key, held in value.items())
    if isinstance(value, set | frozenset):
        return tuple(sorted(_frozen(held, turn) for held in value))  # type: ignore[type-var]
    if hasattr(value, "_fields"):  # a named tuple; when something is due counts from now
        return tuple(
            _frozen(held - turn if name == "due_turn" else held, turn)
            for name, held in zip(value._fields, value, strict=True)
        )
    if isinstance(value, list | tuple | deque):
        return tuple(_frozen(held, turn) for held in value)
    names = (
        [item.name for item in dataclasses.fields(value)]
        if dataclasses.is_dataclass(value)
        else value.__dict__
    )
    return tuple(
        _frozen(sorted(getattr(value, name)) if name == "_free" else getattr(value, name), turn)
        for name in names
        if (kind.__name__, name) not in _LEFT_OUT
    )

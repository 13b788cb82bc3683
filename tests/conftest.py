"""Settings of the whole suite: Hypothesis profiles, and torch made steady where a test uses it."""

import os
import re
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", max_examples=2_000, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)


@pytest.fixture(autouse=True)
def _steady_torch() -> None:
    """One thread and deterministic algorithms, where an engine test has loaded torch.

    Torch is never imported here: most of the suite must pass without it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "use_deterministic_algorithms"):
        # cuBLAS needs a fixed workspace before it can promise the same bits twice.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)


@pytest.fixture(scope="session")
def broken_rules():
    """Return what tells every rule of a JSON schema that a value breaks."""
    return schema_breaks


def schema_breaks(value, schema, root, path="$"):
    """Yield every rule of the schema that `value` breaks: the subset of JSON schema used there."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from schema_breaks(value, root["$defs"][name], root, path)
    if "const" in schema and value != schema["const"]:
        yield f"{path}: not {schema['const']}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if "type" in schema and not has_type(value, schema["type"]):
        yield f"{path}: {value!r} is no {schema['type']}"
        return
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{path}: {value!r} does not match"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: {value} is out of range"
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from schema_breaks(item, schema.get("items", {}), root, f"{path}[{index}]")
    if isinstance(value, dict):
        for name in set(schema.get("required", [])) - set(value):
            yield f"{path}: {name} is missing"
        for name, item in value.items():
            default = schema.get("additionalProperties", {})
            within = schema.get("properties", {}).get(name, default)
            yield from schema_breaks(item, within, root, f"{path}.{name}")


def has_type(value, names):
    kinds = {
        "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
        "number": (int, float), "integer": int,
    }  # fmt: skip
    names = [names] if isinstance(names, str) else names
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, kinds[name]) for name in names)

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvaudit.config import (
    FIXES,
    PROFILES,
    AuditConfig,
    audit_arguments,
    audit_config,
    read_config_file,
    seconds,
)
from kvaudit.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize(
    ("key", "nearest"),
    [("tenant", "tenants"), ("max_tokns", "max-tokens"), ("fixs", "fix"), ("sede", "seed")],
)
def test_an_unknown_key_suggests_the_nearest_one(key: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        audit_config({key: 1})
    assert caught.value.nearest in {nearest, f"{nearest}es"}


def test_keys_are_the_names_of_flags_or_of_fields() -> None:
    by_flag = audit_config({"fix": ["door"], "scenario": ["incident"], "max_time": "5m"})
    by_field = audit_config({"fixes": ["door"], "scenarios": ["incident"], "max_time_s": 300.0})
    assert by_flag == by_field
    assert by_flag.max_time_s == 300


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("tenants", "four", "a whole number"),
        ("tenants", 4.5, "a whole number"),
        ("tenants", True, "a whole number"),
        ("confidence", "high", "a number"),
        ("profile", 3, "text"),
        ("fix", [1], "a list of text"),
        ("max_tokens", [], "a whole number"),
    ],
)
def test_a_value_of_another_type_says_what_it_must_be(key: str, value: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key.replace('_', '-')}`") as caught:
        audit_config({key: value})
    assert wanted in (caught.value.hint or "")


@pytest.mark.parametrize(
    "values",
    [
        {"tenants": 1}, {"tenants": 65}, {"trials": 0}, {"confidence": 0.2}, {"confidence": 1.0},
        {"confidence": float("nan")}, {"target_rate": 0.0}, {"max_tokens": 0}, {"max_time": "0s"},
        {"seed": -1}, {"seed": 2**63}, {"fault": "x", "target": "http://127.0.0.1:1"},
        {"replay_url": "http://127.0.0.1:1"}, {"keep_text": "some"}, {"device": "gpu"},
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused_with_a_hint(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        audit_config(values)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("5m", 300), ("1.5h", 5400), (" 2 m ", 120)]
)
def test_durations_have_units(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5 days", "1e9", "nan", "m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no duration"):
        seconds(text)


@given(
    config=st.builds(
        AuditConfig,
        fixes=st.lists(st.sampled_from(FIXES), unique=True).map(tuple),
        fault=st.none() | st.just("reject-not-propagated"),
        trials=st.none() | st.integers(1, 100),
        tenants=st.integers(2, 64),
        seed=st.integers(0, 2**63 - 1),
        profile=st.sampled_from(PROFILES),
        confidence=st.floats(0.5, 0.99),
        max_time_s=st.none() | st.floats(0.1, 1e6),
        target_rate=st.none() | st.floats(0.01, 0.99),
    )
)
def test_the_arguments_of_a_configuration_give_it_back(config: AuditConfig) -> None:
    words = audit_arguments(config)
    assert words[:2] == ["audit", config.target]
    hints = {field.name: field.type for field in fields(AuditConfig)}
    values: dict[str, Any] = {}
    for flag, text in zip(words[2::2], words[3::2], strict=True):
        key = flag.removeprefix("--").replace("-", "_")
        if key in ("fix", "scenario"):
            values.setdefault(key, []).append(text)
        elif key == "max_time":
            values["max_time_s"] = float(text)
        else:
            number = {int: int, int | None: int, float: float, float | None: float}
            values[key] = number.get(hints[key], str)(text)  # type: ignore[call-overload]
    assert audit_config(values) == config


def test_a_file_gives_the_table_of_one_command(tmp_path: Path) -> None:
    path = tmp_path / "kvaudit.toml"
    path.write_text("[audit]\nmax-tokens = 5\n[scan]\nwindow = '1h'\n")
    assert read_config_file(path, "audit") == {"max_tokens": 5}
    assert read_config_file(path, "preflight") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[audit\n", "is no TOML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"tenants = 3\n", "stands in no table"),
        (b"[aduit]\n", "no table of the configuration `aduit`"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "kvaudit.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_config_file(path, "audit")


def test_a_file_that_is_missing_or_a_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="can't read"):
            read_config_file(path, "audit")


def test_the_defaults_fit() -> None:
    AuditConfig().check()
    assert audit_config({}) == replace(AuditConfig())

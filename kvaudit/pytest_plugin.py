"""`pytest --kvaudit-base-url URL`: the pre-launch suite inside any project's own tests.

pytest loads this file in every run of its environment, wanted or not, so it imports nothing of
kvaudit until a fixture is asked for. Without the option, tests that ask for a fixture, or carry the
marker `kvaudit`, are skipped and say why.

    def test_no_tenant_reads_another(kvaudit_audit):
        assert kvaudit_audit.verdict == "clean", kvaudit_audit.reasons
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

URL_OPTION = "--kvaudit-base-url"
SKIP_REASON = f"needs a server: name one with {URL_OPTION} URL"
# Option, its destination and what it holds; all but the first keep the command's default.
_OPTIONS = (
    ("--kvaudit-model", "model", "NAME", "Model to ask for; default: the first one served."),
    ("--kvaudit-profile", "profile", "NAME", "quick, standard or deep; default: quick."),
    ("--kvaudit-seed", "seed", "N", "All randomness comes from it; default: 1."),
    ("--kvaudit-api-key-env", "api_key_env", "VAR", "Variable with a tenant's key; repeat."),
    ("--kvaudit-max-tokens", "max_tokens", "N", "Limit on all tokens of the run."),
    ("--kvaudit-out", "out", "DIR", "Run folder; default: a temporary one."),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("kvaudit", "output contamination of an LLM server")
    group.addoption(URL_OPTION, metavar="URL", help="Server that the suite is run against.")
    for flag, name, metavar, text in _OPTIONS:
        action = "append" if name == "api_key_env" else "store"
        group.addoption(flag, action=action, metavar=metavar, help=text)
    group.addoption(
        "--kvaudit-i-am-authorised",
        action="store_true",
        help="You may send probes to a server that is not this machine.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", f"kvaudit: needs the server of {URL_OPTION}; skipped without it"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which server the session talks to."""
    url = config.getoption(URL_OPTION)
    return f"kvaudit: {url}" if url else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip marked tests where there is no server to ask."""
    if config.getoption(URL_OPTION):
        return
    for item in items:
        if item.get_closest_marker("kvaudit") is not None:
            item.add_marker(pytest.mark.skip(reason=SKIP_REASON))


@pytest.fixture(scope="session")
def kvaudit_base_url(request: pytest.FixtureRequest) -> str:
    """Return the server's base URL; skips where none is named."""
    url = request.config.getoption(URL_OPTION)
    if not url:
        pytest.skip(SKIP_REASON)
    return str(url)


@pytest.fixture(scope="session")
def kvaudit_target(kvaudit_base_url: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return the server as a `kvaudit.target.Target`: facts, token counts, waves of requests."""
    from kvaudit.cli.remote import open_server

    settings = _settings(request.config, kvaudit_base_url)
    with _told():
        target = open_server(
            _audit_config(settings),
            is_authorised=_is_authorised(request.config),
            names_model="model" in settings,
        )
    with closing(target):
        yield target


@pytest.fixture(scope="session")
def _kvaudit_run(
    kvaudit_base_url: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, Any]:
    """Run the suite once and return what it saw and how its checks came out."""
    from kvaudit.cli.audit_run import Options, run_audit
    from kvaudit.cli.prelaunch_told import examined
    from kvaudit.clock import WallClock
    from kvaudit.prelaunch import SCENARIOS

    out = request.config.getoption("--kvaudit-out")
    options = Options(
        out=Path(out) if out else tmp_path_factory.mktemp("kvaudit") / "run",
        as_json=False,
        is_quiet=True,
        is_dry_run=False,
        is_resumed=False,
        retries_unknown=False,
        is_authorised=_is_authorised(request.config),
        says_yes=_is_authorised(request.config),
        flags=_settings(request.config, kvaudit_base_url),
        settings={"scenarios": list(SCENARIOS)},
    )
    with _told():
        folder = run_audit(options, WallClock())
        assert folder is not None, "no dry run was asked for"
        return examined(folder)


@pytest.fixture(scope="session")
def kvaudit_audit(_kvaudit_run: tuple[Any, Any]) -> Any:
    """Return the judged `AuditRun` of the whole suite: `.verdict`, `.reasons`, `.findings`."""
    return _kvaudit_run[0].run


@pytest.fixture(scope="session")
def kvaudit_checks(_kvaudit_run: tuple[Any, Any]) -> Mapping[str, Any]:
    """Return every check of the suite by name: `.state`, `.reason`, `.request_ids`."""
    return {result.name: result for result in _kvaudit_run[1]}


@contextmanager
def _told() -> Iterator[None]:
    """Turn an error of kvaudit into one readable failure instead of a traceback of our code."""
    from kvaudit.errors import KvauditError

    try:
        yield
    except KvauditError as error:
        hint = f"\nhint: {error.hint}" if error.hint else ""
        pytest.fail(f"kvaudit: {error.message}{hint}", pytrace=False)


def _is_authorised(config: pytest.Config) -> bool:
    return bool(config.getoption("--kvaudit-i-am-authorised"))


def _settings(config: pytest.Config, url: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"target": url}
    for flag, name, _, _ in _OPTIONS:
        value = config.getoption(flag)
        if value is None or name == "out":
            continue
        settings[name] = _whole(flag, value) if name in ("seed", "max_tokens") else value
    return settings


def _whole(flag: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise pytest.UsageError(f"{flag} wants a whole number, not `{value}`") from None


def _audit_config(settings: dict[str, Any]) -> Any:
    from kvaudit.config import audit_config

    return audit_config(settings)

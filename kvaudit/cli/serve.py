"""`kvaudit serve`: the reference engine on a port, until it is told to stop."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from typer import Context, Option

from kvaudit.cli.flags import (
    Config,
    ContextTokens,
    DecodeDevice,
    Device,
    Dtype,
    Fault,
    Fix,
    Json,
    Model,
    Out,
    PrefillDevice,
    Quiet,
    Seed,
    file_settings,
    given,
    not_built,
)
from kvaudit.cli.terminal import escape, say, write_json, write_text
from kvaudit.errors import ConfigError, MissingExtraError, UnknownNameError

# ruff: noqa: ARG001  settings are read from the context, all in one way

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_MODEL = "copier"
SIZES = {"context_tokens", "prefill_pool_tokens", "decode_pool_tokens"}
ENGINE_PACKAGES = {
    "torch", "transformers", "tokenizers", "safetensors", "gguf", "starlette", "uvicorn",
}  # fmt: skip
# Settings of the file and flags, with the type that each must have.
TEXTS = ("host", "model", "fault", "device", "prefill_device", "decode_device", "dtype")
NUMBERS = (
    "port", "context_tokens", "page_size", "prefill_pool_tokens", "decode_pool_tokens", "seed",
)  # fmt: skip
NAMES = (*TEXTS, *NUMBERS, "fix", "prefix_cache")

Host = Annotated[str | None, Option("--host", metavar="HOST", help="[default: 127.0.0.1]")]
Port = Annotated[
    int | None, Option("--port", metavar="N", help="0 = any free one.  [default: 8000]")
]
PrefillPool = Annotated[
    int | None, Option("--prefill-pool-tokens", metavar="N", help="KV pool of prefill, in tokens.")
]
DecodePool = Annotated[
    int | None, Option("--decode-pool-tokens", metavar="N", help="KV pool of decode, in tokens.")
]
PageSize = Annotated[int | None, Option("--page-size", metavar="N", help="Tokens in a page.")]
PrefixCache = Annotated[bool, Option("--prefix-cache", help="Serve prompts from a prefix cache.")]


def serve(
    context: Context,
    host: Host = None,
    port: Port = None,
    model: Model = None,
    fault: Fault = None,
    fix: Fix = None,
    device: Device = None,
    prefill_device: PrefillDevice = None,
    decode_device: DecodeDevice = None,
    dtype: Dtype = None,
    context_tokens: ContextTokens = None,
    prefill_pool_tokens: PrefillPool = None,
    decode_pool_tokens: DecodePool = None,
    page_size: PageSize = None,
    prefix_cache: PrefixCache = False,
    seed: Seed = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    config: Config = None,
) -> int:
    """Serve the reference engine over HTTP, in the shapes of the OpenAI API.

    The base URL is printed on stdout as one line once requests are taken. Ctrl-C and SIGTERM let
    what is in flight end, then stop. Any bearer token is taken and names the tenant: the server is
    a test object and must not face a network.
    """
    if out is not None:
        raise not_built("kvaudit serve --out")
    settings = checked_settings(file_settings(config, "serve") | given(context, NAMES))
    return _serve(settings, as_json=json, is_quiet=quiet)


def checked_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return flags and keys of the file, each of the right type.

    Raises:
        UnknownNameError: A key that nobody knows, with the nearest one.
        ConfigError: A value of the wrong type.
    """
    settings: dict[str, Any] = {}
    for key, value in values.items():
        if key not in NAMES:
            names = [name.replace("_", "-") for name in NAMES]
            raise UnknownNameError("configuration key", key.replace("_", "-"), names)
        held = [value] if key == "fix" and isinstance(value, str) else value
        if key == "fix":
            fits = isinstance(held, list | tuple) and all(isinstance(one, str) for one in held)
        elif key == "prefix_cache":
            fits = isinstance(held, bool)
        else:
            fits = type(held) is (str if key in TEXTS else int)
        if not fits:
            name = key.replace("_", "-")
            raise ConfigError(f"`{name}` is {value!r}", hint=f"it must be {_wanted(key)}")
        settings[key] = held
    return settings


def _wanted(key: str) -> str:
    if key == "prefix_cache":
        return "true or false"
    return "a whole number" if key in NUMBERS else "text"


def _serve(settings: Mapping[str, Any], *, as_json: bool, is_quiet: bool) -> int:
    from engine.config import check_model
    from engine.serving import engine_config

    check_model(settings.get("model", DEFAULT_MODEL))
    chosen, switched = engine_config(
        {key: value for key, value in settings.items() if key not in ("host", "port")}
    )
    try:
        from engine.server import ReferenceServer, is_loopback_host, serve_until
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ENGINE_PACKAGES:
            raise
        raise MissingExtraError("`kvaudit serve`", str(error.name)) from None

    host = settings.get("host", DEFAULT_HOST)
    port = settings.get("port", DEFAULT_PORT)
    for part in switched:
        say(f"fault `{chosen.faults.fault}` needs the {part}: switched on")
    if not is_quiet and SIZES & settings.keys():
        for line in size_warnings(chosen):
            say(line)
    if not is_loopback_host(host) and not is_quiet:
        say(f"warning: `{escape(host)}` may be reached from outside, and any token is taken")
    server = ReferenceServer(chosen, host=host, port=port)

    def ready(url: str) -> None:
        if as_json:
            item = {"url": url, "model": chosen.model, "fault": chosen.faults.fault}
            write_json({"schema": 1, "command": "serve", "items": [item]})
        else:
            write_text(f"{url}\n")
        if not is_quiet:
            say(f"serving `{escape(chosen.model)}`; Ctrl-C stops")

    with stopping_on_signals() as stopped:
        serve_until(server, stopped, ready)
    if not is_quiet:
        say("stopped")
    return 0


def size_warnings(chosen: Any) -> list[str]:
    """Return one line for each role of an EngineConfig whose pool can't hold the whole context."""
    roles = (
        ("prefill", chosen.prefill_pool_tokens, chosen.prefill_limit),
        ("decode", chosen.decode_pool_tokens, chosen.decode_limit),
    )
    return [
        f"warning: the {role} pool of {pool:,} tokens is smaller than the context of"
        f" {chosen.context_tokens:,}: {role} refuses prompts of {limit:,} tokens or more"
        for role, pool, limit in roles
        if pool < chosen.context_tokens
    ]


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """Give an event that the first Ctrl-C or SIGTERM sets; the second one ends the process."""
    stopped = threading.Event()

    def stop(_number: int, _frame: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

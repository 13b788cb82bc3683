"""Sources of a preflight: what each is, and what it says. Nothing of them is ever run."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from kvaudit.errors import ConfigError
from kvaudit.preflight.config_files import linked
from kvaudit.preflight.deployment import MODEL, Piece
from kvaudit.preflight.dockerfiles import looks_like_dockerfile, read_dockerfile
from kvaudit.preflight.launches import read_launches
from kvaudit.preflight.live import read_live
from kvaudit.preflight.manifests import read_manifests
from kvaudit.preflight.pages import (
    looks_like_log,
    looks_like_metrics,
    read_json,
    read_log,
    read_metrics,
)
from kvaudit.serverfacts import ServerAnswers

BYTES_MAX = 16 * 1024 * 1024
_YAML = re.compile(
    r"^(apiVersion|kind|services|spec|metadata|version|x-[\w-]+|model_list|litellm_settings"
    r"|kv_cache_config|local_cpu|chunk_size)\s*:",
    re.MULTILINE,
)


Fetch = Callable[[str], ServerAnswers]


def read_sources(sources: Sequence[str], fetch: Fetch | None = None) -> list[Piece]:
    """Return what the sources say, in their order.

    Args:
        sources: Files, commands, `-`, and base URLs of running servers.
        fetch: Gets a server's own pages; None = no URL may be asked.

    Raises:
        ConfigError: A source can't be read, or says nothing of a deployment.
    """
    pieces: list[Piece] = []
    for source in sources:
        if is_url(source):
            if fetch is None:
                raise ConfigError(f"`{source}` is a URL, and none may be asked here")
            pieces += read_live(fetch(source), source.rstrip("/"))
            continue
        text, where = _text(source)
        found = read_text(text, where)
        if not found:
            raise ConfigError(
                f"`{where}` starts no engine that is known here",
                hint="give a launch command, a manifest, a compose file, a saved server page,"
                " metrics or a start-up log; of a Helm chart the output of `helm template`",
            )
        pieces += found
    if all(piece.role == MODEL for piece in pieces):
        raise ConfigError(
            "the sources tell of a model and of no engine", hint="give its launch command too"
        )
    return linked(pieces)


def is_url(source: str) -> bool:
    """Return whether a source is the base URL of a running server."""
    return re.match(r"https?://", source) is not None


def _text(source: str) -> tuple[str, str]:
    if source == "-":
        return _decoded(sys.stdin.buffer.read(BYTES_MAX + 1), "standard input"), "standard input"
    path = Path(source)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):
        is_file = False
    if not is_file:
        if len(source.split()) > 1 and read_launches(source, "the command line"):
            return source, "the command line"
        what = "a folder" if path.is_dir() else "no file, and no command that starts an engine"
        raise ConfigError(f"`{source}` is {what}", hint="name a file, or quote a launch command")
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"can't read `{source}`: {error.strerror}") from None
    return _decoded(content, source), source


def _decoded(content: bytes, where: str) -> str:
    if len(content) > BYTES_MAX:
        raise ConfigError(
            f"`{where}` is larger than {BYTES_MAX:,} bytes",
            hint="cut it: of a log only the start is needed",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"`{where}` is not UTF-8 text") from None
    if not text.strip():
        raise ConfigError(f"`{where}` is empty")
    return text


def read_text(text: str, where: str) -> list[Piece]:
    """Return what one text says, whatever kind it is."""
    opening = text.lstrip()[:1]
    is_yaml = where.endswith((".yaml", ".yml"))
    if (opening == "{" and not is_yaml) or (opening == "[" and _is_json(text)):
        return read_json(text, where)
    if looks_like_log(text):
        return read_log(text, where)
    if looks_like_metrics(text):
        return read_metrics(text, where)
    if is_yaml or _YAML.search(text):
        return read_manifests(text, where)
    if looks_like_dockerfile(text):
        return read_dockerfile(text, where)
    return read_launches(text, where)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

"""Dockerfiles: the image that one is built from, its variables, and what it starts."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from kvaudit.preflight.deployment import Piece
from kvaudit.preflight.images import engine_of_image
from kvaudit.preflight.launches import expanded, read_words, versions_said

_LINE = re.compile(r"^(FROM|ENV|ARG|CMD|ENTRYPOINT)\s+(.+)$", re.IGNORECASE | re.MULTILINE)


def looks_like_dockerfile(text: str) -> bool:
    """Return whether a text builds an image that starts something."""
    words = {match[1].upper() for match in _LINE.finditer(text)}
    return "FROM" in words and bool(words & {"CMD", "ENTRYPOINT"})


def read_dockerfile(text: str, where: str) -> list[Piece]:
    """Return what the last stage of a Dockerfile starts; empty if that is no engine."""
    image = ""
    environment: dict[str, str] = {}
    started: dict[str, list[str]] = {}
    for match in _LINE.finditer(re.sub(r"\\\r?\n", " ", text)):
        word, rest = match[1].upper(), match[2].strip()
        if word == "FROM":
            image, started = expanded(next(iter(rest.split()), ""), environment), {}
        elif word in ("ENV", "ARG"):
            environment |= dict(_variables(rest))
        else:
            started[word] = _words(rest)
    engine, version = engine_of_image(image)
    words = started.get("ENTRYPOINT", []) + started.get("CMD", [])
    pieces = read_words(words, where, environment=environment, engine=engine, version=version)
    said = versions_said(text, where)
    return [
        piece if piece.version is not None else replace(piece, version=said.get(piece.engine or ""))
        for piece in pieces
    ]


def _words(text: str) -> list[str]:
    if text.startswith("["):
        try:
            return [str(word) for word in json.loads(text)]
        except ValueError:
            return []
    return ["sh", "-c", text]


def _variables(text: str) -> Iterator[tuple[str, str]]:
    try:
        words = shlex.split(text)
    except ValueError:
        return
    if words and "=" not in words[0]:
        yield words[0], " ".join(words[1:])
        return
    for word in words:
        name, _, value = word.partition("=")
        yield name, value

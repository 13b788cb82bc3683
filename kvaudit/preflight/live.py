"""A running server as a source: what its own pages say, taken as one role."""

import json
from collections.abc import Iterator
from dataclasses import replace

from kvaudit.errors import ConfigError
from kvaudit.preflight.deployment import Origin, Piece, Setting
from kvaudit.preflight.options import ENGINES
from kvaudit.preflight.pages import looks_like_metrics, read_json, read_metrics
from kvaudit.serverfacts import ServerAnswers, ServerFacts, facts_of

_PAGES = ("server_info", "info", "props")


def read_live(answers: ServerAnswers, where: str) -> list[Piece]:
    """Return what a server's pages say; all pieces share its URL as their workload.

    Args:
        answers: The pages, decoded.
        where: Base URL of the server.

    Raises:
        ConfigError: The server tells nothing about itself.
    """
    facts = facts_of(answers)
    pieces = [*_page_pieces(answers, where), *_facts_pieces(facts, where)]
    if not pieces:
        raise ConfigError(
            f"`{where}` tells nothing of the engine behind it",
            hint="name the servers behind the gateway, one URL for each role, or their launch"
            " commands",
        )
    engine = facts.kind if facts.kind in ENGINES else None
    apart = {piece.role for piece in pieces} & {"prefill", "decode"}
    return [
        replace(
            piece,
            engine=piece.engine or engine,
            # Pages that name no role belong to the one that the server has.
            role=next(iter(apart)) if len(apart) == 1 else piece.role,
            workload=where,
        )
        for piece in pieces
    ]


def _page_pieces(answers: ServerAnswers, where: str) -> Iterator[Piece]:
    for name in _PAGES:
        page = getattr(answers, name)
        if not isinstance(page, dict) or not page:
            continue
        try:
            yield from read_json(json.dumps(page), f"{where}/{name}")
        except ConfigError:
            continue  # a page of another meaning under the same path
    if answers.metrics is not None and looks_like_metrics(answers.metrics):
        yield from read_metrics(answers.metrics, f"{where}/metrics")


def _facts_pieces(facts: ServerFacts, where: str) -> Iterator[Piece]:
    """Return version, context and pools, which stand on different pages of different engines."""
    version = _setting(facts.version, where)
    shared = {"context_length": facts.context_tokens, "model_path": facts.model}
    roles = facts.roles or (None,)
    if facts.kind == "unknown" and facts.context_tokens is None and not facts.roles:
        return
    for role in roles:
        values: dict[str, str | int | None] = dict(shared)
        if role is not None:
            limit = role.max_input_tokens
            values |= {
                "pool_tokens": role.pool_tokens,
                "page_size": role.page_size,
                "input_limit": None if limit is None else limit + 1,
            }
        settings = {
            name: held
            for name, value in values.items()
            if (held := _setting(value, where)) is not None
        }
        is_apart = role is not None and role.role in ("prefill", "decode")
        yield Piece(
            where=where,
            engine=facts.kind if facts.kind in ENGINES else None,
            role=role.role if role is not None and is_apart else None,
            version=version,
            settings=settings,
        )


def _setting(value: str | int | None, where: str) -> Setting | None:
    return None if value is None else Setting(value=value, origin=Origin.SAID, where=where)

"""Kubernetes manifests and docker compose files: containers that start an engine."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvaudit.preflight.deployment import Origin, Piece, Setting
from kvaudit.preflight.launches import component, engine_of_image, read_words
from kvaudit.preflight.yaml_text import mapping, read_yaml, sequence

_DEPTH_MAX = 60


def read_manifests(text: str, where: str) -> list[Piece]:
    """Return a piece for each container of a YAML text that starts an engine.

    Raises:
        ConfigError: The YAML is broken, too large or an unrendered template.
    """
    documents = read_yaml(text, where)
    maps = _config_maps(documents)
    pieces: list[Piece] = []
    for document in documents:
        if isinstance(document, Mapping) and isinstance(document.get("services"), Mapping):
            pieces += _compose(document["services"], where)
        else:
            pieces += [
                piece
                for name, pod in _pods(document, "", 0)
                for piece in _pod(name, pod, maps, where)
            ]
    return pieces


def _compose(services: Mapping[str, Any], where: str) -> Iterator[Piece]:
    for name, service in services.items():
        held = mapping(service)
        words = _words(held.get("entrypoint")) + _words(held.get("command"))
        environment = _compose_environment(held.get("environment"))
        yield from _container(
            str(held.get("image") or ""), words, environment, name, f"{where}, service {name}", {}
        )


def _compose_environment(said: Any) -> dict[str, str]:
    if isinstance(said, Mapping):
        return {str(key): _text(value) for key, value in said.items() if value is not None}
    return dict(str(item).split("=", 1) for item in sequence(said) if "=" in str(item))


def _words(said: Any) -> list[str]:
    """Return a command of compose or Kubernetes as words; a text is split as a shell would."""
    if isinstance(said, str):
        try:
            return shlex.split(said.replace("\\\n", " "))
        except ValueError:
            return said.split()
    return [_text(word) for word in sequence(said)]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _config_maps(documents: Sequence[Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for document in _listed(documents):
        held = mapping(document)
        if held.get("kind") == "ConfigMap":
            name = str(mapping(held.get("metadata")).get("name"))
            found[name] = {key: _text(value) for key, value in mapping(held.get("data")).items()}
    return found


def _listed(documents: Sequence[Any]) -> Iterator[Any]:
    for document in documents:
        held = mapping(document)
        if held.get("kind") == "List":
            yield from sequence(held.get("items"))
        else:
            yield document


def _pods(node: Any, name: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every pod, wherever it is nested, with its labels; custom kinds nest at will."""
    if depth > _DEPTH_MAX:
        return
    if isinstance(node, Mapping):
        own = mapping(node.get("metadata")).get("name") or name
        spec = mapping(node.get("spec"))
        if isinstance(spec.get("containers"), list):
            yield str(own or ""), node
            return
        for value in node.values():
            yield from _pods(value, str(own or ""), depth + 1)
    elif isinstance(node, list):
        for value in node:
            yield from _pods(value, name, depth + 1)


def _pod(
    name: str, pod: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]], where: str
) -> Iterator[Piece]:
    spec = mapping(pod.get("spec"))
    labels = mapping(mapping(pod.get("metadata")).get("labels"))
    for container in sequence(spec.get("containers")):
        held = mapping(container)
        words = [_text(word) for word in sequence(held.get("command")) + sequence(held.get("args"))]
        yield from _container(
            str(held.get("image") or ""), words, _environment(held, maps), name,
            f"{where}, {name or held.get('name') or 'pod'}", labels,
        )  # fmt: skip


def _environment(
    container: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    environment: dict[str, str] = {}
    for source in sequence(container.get("envFrom")):
        reference = mapping(mapping(source).get("configMapRef")).get("name")
        environment |= maps.get(str(reference), {})
    for variable in sequence(container.get("env")):
        held = mapping(variable)
        key = str(held.get("name"))
        if held.get("value") is not None:
            environment[key] = _text(held["value"])
            continue
        reference = mapping(mapping(held.get("valueFrom")).get("configMapKeyRef"))
        said = maps.get(str(reference.get("name")), {}).get(str(reference.get("key")))
        if said is not None:
            environment[key] = said
    return environment


def _container(
    image: str, words: Sequence[str], environment: Mapping[str, str], workload: str, where: str,
    labels: Mapping[str, Any],
) -> Iterator[Piece]:  # fmt: skip
    engine, version = engine_of_image(image)
    if version is None and engine is not None:
        said = labels.get("app.kubernetes.io/version") or labels.get("version")
        version = str(said) if said is not None else None
    beside = "lmcache" if engine == "lmcache" else None
    piece = read_words(
        words, where, environment=environment, engine=None if beside else engine,
        version=None if beside else version, workload=workload or None,
    )  # fmt: skip
    if piece is not None and piece.engine == beside:
        yield _versioned(piece, version, where)
        return
    if piece is not None:
        yield piece
    if beside:
        yield _versioned(component(beside, None, where), version, where)


def _versioned(piece: Piece, version: str | None, where: str) -> Piece:
    if version is None:
        return piece
    return replace(piece, version=Setting(value=version, origin=Origin.ARGUMENT, where=where))

"""Kubernetes manifests and docker compose files: containers that start an engine."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvaudit.preflight.config_files import linked, read_config
from kvaudit.preflight.deployment import Origin, Piece, Setting
from kvaudit.preflight.images import engine_of_image, packed_with, tag_note
from kvaudit.preflight.launches import component, read_words
from kvaudit.preflight.yaml_text import mapping, read_yaml, sequence

_DEPTH_MAX = 60
_DEFAULT = re.compile(r"\$\{\w+:?-([^{}$]*)\}")


def read_manifests(text: str, where: str) -> list[Piece]:
    """Return a piece for each container of a YAML text that starts an engine.

    Raises:
        ConfigError: The YAML is broken, too large or an unrendered template.
    """
    return read_documents(read_yaml(text, where), where)


def read_documents(documents: Sequence[Any], where: str) -> list[Piece]:
    """Return what parsed manifests say, and the files of options among them."""
    maps = _config_maps(documents)
    pieces: list[Piece] = list(_mounted(maps, where))
    for document in documents:
        pieces += read_config(document, where)
        if isinstance(document, Mapping) and isinstance(document.get("services"), Mapping):
            pieces += _compose(document["services"], where)
        else:
            pieces += [
                piece
                for name, pod in _pods(document, "", 0)
                for piece in _pod(name, pod, maps, where)
            ]
    return linked(pieces)


def _compose(services: Mapping[str, Any], where: str) -> Iterator[Piece]:
    for name, service in services.items():
        held = mapping(service)
        words = _words(held.get("entrypoint")) + _words(held.get("command"))
        environment = _compose_environment(held.get("environment"))
        yield from _container(
            _defaulted(str(held.get("image") or "")), words, environment, name,
            f"{where}, service {name}", {}, tells_environment=not held.get("env_file"),
        )  # fmt: skip


def _defaulted(image: str) -> str:
    """Return an image with the defaults of its variables: `sglang:${TAG:-v0.5.22}`."""
    return _DEFAULT.sub(lambda match: match[1] or match[0], image)


def _mounted(maps: Mapping[str, Mapping[str, str]], where: str) -> Iterator[Piece]:
    """Yield the files of options that ConfigMaps hold."""
    for name, data in maps.items():
        for key, text in data.items():
            if not key.endswith((".yaml", ".yml", ".json")):
                continue
            place = f"{where}, ConfigMap {name}, {key}"
            for document in read_yaml(text, place):
                yield from read_config(document, place)


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
    if isinstance(value, float) and value.is_integer():
        return str(int(value))  # `1.048576e+6`
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
        for pod in (node, {"spec": node}):
            if _containers(mapping(pod.get("spec"))):
                yield str(own or ""), pod
                return
        for value in node.values():
            yield from _pods(value, str(own or ""), depth + 1)
    elif isinstance(node, list):
        for value in node:
            yield from _pods(value, name, depth + 1)


def _containers(spec: Mapping[str, Any]) -> list[Any]:
    """Return the containers of a pod; some operators write the one that matters by itself."""
    main = spec.get("mainContainer")
    return sequence(spec.get("containers")) or ([main] if isinstance(main, Mapping) else [])


def _pod(
    name: str, pod: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]], where: str
) -> Iterator[Piece]:
    spec = mapping(pod.get("spec"))
    labels = mapping(mapping(pod.get("metadata")).get("labels"))
    for container in _containers(spec):
        held = mapping(container)
        words = _words(held.get("command")) + _words(held.get("args"))
        yield from _container(
            str(held.get("image") or ""), words, _environment(held, maps), name,
            f"{where}, {name or held.get('name') or 'pod'}", labels,
            tells_environment=_tells(held, maps),
        )  # fmt: skip


def _tells(container: Mapping[str, Any], maps: Mapping[str, Mapping[str, str]]) -> bool:
    """Return whether every variable of a container is in the manifests or can be no option."""
    return all(
        str(mapping(mapping(source).get("configMapRef")).get("name")) in maps
        for source in sequence(container.get("envFrom"))
    )


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
    labels: Mapping[str, Any], *, tells_environment: bool = True,
) -> Iterator[Piece]:  # fmt: skip
    engine, version = engine_of_image(image)
    packed, note = packed_with(image), tag_note(image)
    if version is None and engine is not None and packed is None and note is None:
        said = labels.get("app.kubernetes.io/version") or labels.get("version")
        version = str(said) if said is not None else None
    # A store's image may run an engine that its client is packed with.
    is_store = engine == "lmcache"
    pieces = read_words(
        words, where, environment=environment, engine=None if is_store else engine,
        version=None if is_store else version, workload=workload or None,
        tells_environment=tells_environment,
    )  # fmt: skip
    notes = () if note is None else (f"{where}: {note}",)
    for piece in pieces:
        held = replace(piece, notes=piece.notes + notes)
        yield _versioned(held, version, where) if is_store and piece.engine == engine else held
    store = ("lmcache", version) if is_store else packed
    if store is not None and all(piece.engine != "lmcache" for piece in pieces):
        yield _versioned(component(store[0], None, where), store[1], where)


def _versioned(piece: Piece, version: str | None, where: str) -> Piece:
    if version is None:
        return piece
    return replace(piece, version=Setting(value=version, origin=Origin.ARGUMENT, where=where))

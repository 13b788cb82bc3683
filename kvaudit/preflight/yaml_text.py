"""YAML, read safely: no tags that make objects, bounded size, depth, aliases and expansion."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from kvaudit.errors import ConfigError

DEPTH_MAX = 60
NODES_MAX = 200_000
ALIASES_MAX = 200
# Helm's and Jinja's marks for values; a chat template inside a manifest has others too.
_TEMPLATE = re.compile(
    r"\{\{-?\s*(\.|\$|include\b|template\b|toYaml\b|quote\b|default\b|if\b|range\b|with\b|end\b"
    r"|values\b)",
    re.IGNORECASE,
)


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that stands twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"key `{key.value}` stands twice, again on line {line}")
            seen.add(key.value)
    loader.flatten_mapping(node)
    made = loader.construct_mapping(node, deep=True)
    return {str(key): value for key, value in made.items()}


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_yaml(text: str, where: str) -> list[Any]:
    """Return the documents of a YAML text; empty ones are left out.

    Raises:
        ConfigError: It is broken, a template that was not rendered, or too large.
    """
    template = _TEMPLATE.search(text)
    if template is not None:
        line = text.count("\n", 0, template.start()) + 1
        raise ConfigError(
            f"`{where}` is a template that was not rendered (line {line})",
            hint="give the output of `helm template`, or of the tool that fills it in",
        )
    try:
        _check_depth(text, where)
        for node in yaml.compose_all(text, Loader=_Loader):
            if node is not None:
                _size(node, where, {})
        return [held for held in yaml.load_all(text, Loader=_Loader) if held is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" on line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it can't be parsed"
        raise ConfigError(
            f"`{where}` is no whole YAML{place}: {problem}", hint="mend it; nothing of it was used"
        ) from None
    except RecursionError:
        raise ConfigError(f"`{where}` is nested too deeply") from None
    except ConfigError as error:
        if where in error.message:
            raise
        raise ConfigError(f"`{where}`: {error.message}", hint=error.hint) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"`{where}` holds a value that can't be read: {error}") from None


def _check_depth(text: str, where: str) -> None:
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEPTH_MAX:
                raise ConfigError(f"`{where}` is nested more than {DEPTH_MAX} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if aliases > ALIASES_MAX:
                raise ConfigError(f"`{where}` holds more than {ALIASES_MAX} aliases")


def _size(node: yaml.Node, where: str, sizes: dict[int, int]) -> int:
    """Return the number of nodes with every alias written out; aliases of aliases multiply."""
    if id(node) in sizes:
        if sizes[id(node)] == 0:
            raise ConfigError(f"`{where}` holds an alias of itself")
        return sizes[id(node)]
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_size(child, where, sizes) for child in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_size(child, where, sizes) for pair in node.value for child in pair)
    if size > NODES_MAX:
        raise ConfigError(f"`{where}` has more than {NODES_MAX:,} nodes")
    sizes[id(node)] = size
    return size


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []

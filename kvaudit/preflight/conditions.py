"""The language of a hazard's condition: closed, small, three-valued.

    apart and prefill(enable_lora) and not differs(page_size) and page_size >= 64

Names are facts of a role. Words: `and`, `or`, `not`, `true`, `false`; comparisons `==`, `!=`, `<`,
`<=`, `>`, `>=` with a number or a string, and `~` (contains a string, whatever its case).
`any(...)`, `prefill(...)` and `decode(...)` ask other roles of the deployment, `differs(NAME)` asks
whether two roles say different things. There are no calls, no attributes and no arithmetic, so that
a hazard file can do nothing but ask.

What is not known is None: it spreads unless the other side decides (Kleene's logic), and the names
of the facts that decide are handed back, so that a report can say which answer is missing.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvaudit.errors import ConfigError
from kvaudit.preflight.versions import compare, parse_version

CONDITION_CHARS_MAX = 1_000
_DEPTH_MAX = 20
_TOKEN = re.compile(
    r"\s*(?:(?P<string>\"[^\"]*\")|(?P<number>\d+(?:\.\d+)?)|(?P<name>[a-z_][a-z0-9_]*)"
    r"|(?P<mark>[<>=!]=|[<>~()]))"
)
_RESOLVED = ("context_length", "page_size", "kv_cache_dtype")
_SCOPES = ("any", "prefill", "decode")


class Unknown:
    """What nobody said. There is one of it."""

    def __repr__(self) -> str:
        """Return its name."""
        return "UNKNOWN"


UNKNOWN = Unknown()
Value = None | bool | int | float | str | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A part of a condition.

    Attributes:
        kind: `and`, `or`, `not`, `name`, `literal`, `differs`, a comparison, or a scope.
        parts: Its operands.
        value: Of a name or a literal.
    """

    kind: str
    parts: tuple["Node", ...] = ()
    value: bool | int | float | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a condition comes to.

    Attributes:
        holds: None = an unknown decides.
        missing: Names of the unknowns that decide; empty unless `holds` is None.
    """

    holds: bool | None
    missing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a condition may ask: one role, and the others of its deployment.

    Attributes:
        fact: Value of a name for the role at hand.
        roles: The facts of every role, by name of the role; a name may stand there twice.
    """

    fact: Callable[[str], Value]
    roles: Sequence[tuple[str, Callable[[str], Value]]] = ()


def parse_condition(text: str) -> Node:
    """Return the tree of a condition.

    Raises:
        ConfigError: It is none.
    """
    if len(text) > CONDITION_CHARS_MAX:
        raise ConfigError(f"a condition has {len(text)} characters")
    tokens = list(_tokens(text))
    node, at = _either(tokens, 0, 0)
    if at != len(tokens):
        raise ConfigError(f"`{tokens[at][1]}` is left over in the condition `{text}`")
    return node


def names_of(node: Node) -> frozenset[str]:
    """Return every fact that a condition asks for."""
    own = {str(node.value)} if node.kind in ("name", "differs") else set()
    return frozenset(own).union(*(names_of(part) for part in node.parts))


def ask(node: Node, facts: Facts) -> Answer:
    """Return what a condition comes to for one role."""
    if node.kind in ("and", "or"):
        return _joined(node.kind, [ask(part, facts) for part in node.parts])
    if node.kind == "not":
        inner = ask(node.parts[0], facts)
        return Answer(holds=None if inner.holds is None else not inner.holds, missing=inner.missing)
    if node.kind in _SCOPES:
        return _joined("or", [
            ask(node.parts[0], Facts(fact=fact, roles=facts.roles))
            for role, fact in facts.roles if node.kind in ("any", role)
        ])  # fmt: skip
    if node.kind == "differs":
        return _differs(str(node.value), facts)
    if node.kind in ("name", "literal"):
        value = _value(node, facts)
        if isinstance(value, Unknown):
            return Answer(holds=None, missing=frozenset({str(node.value)}))
        return Answer(holds=bool(value))
    return _compared(node, facts)


def _joined(kind: str, answers: Sequence[Answer]) -> Answer:
    decisive = kind == "or"
    if any(answer.holds is decisive for answer in answers):
        return Answer(holds=decisive)
    unknown = [answer for answer in answers if answer.holds is None]
    if unknown:
        return Answer(
            holds=None, missing=frozenset().union(*(answer.missing for answer in unknown))
        )
    return Answer(holds=not decisive)


def _differs(name: str, facts: Facts) -> Answer:
    values = [fact(name) for role, fact in facts.roles if role in ("prefill", "decode")]
    if name in _RESOLVED and any(value not in (None, UNKNOWN) for value in values):
        # Left out, it comes from the model or the backend, which may well give the same.
        values = [UNKNOWN if value is None else value for value in values]
    known = {repr(value) for value in values if not isinstance(value, Unknown)}
    if len(known) > 1:
        return Answer(holds=True)
    if len(values) > 1 and any(isinstance(value, Unknown) for value in values):
        return Answer(holds=None, missing=frozenset({name}))
    return Answer(holds=False)


def _value(node: Node, facts: Facts) -> Value:
    return facts.fact(str(node.value)) if node.kind == "name" else node.value


def _compared(node: Node, facts: Facts) -> Answer:
    left, right = (_value(part, facts) for part in node.parts)
    missing = frozenset(
        str(part.value)
        for part, value in zip(node.parts, (left, right), strict=True)
        if isinstance(value, Unknown)
    )
    if missing:
        return Answer(holds=None, missing=missing)
    return Answer(holds=_holds(node.kind, left, right, str(node.parts[0].value)))


def _holds(operator: str, left: Value, right: Value, name: str) -> bool | None:
    if operator == "~":
        return str(right).lower() in str(left).lower() if left is not None else False
    if left is None or right is None:
        return operator == "!="
    if name.endswith("version") and isinstance(left, str) and isinstance(right, str):
        first, second = parse_version(left), parse_version(right)
        return None if first is None or second is None else compare(first, operator, second)
    if operator == "==":
        return left == right
    if operator == "!=":
        return left != right
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return False
    order: Mapping[str, bool] = {
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
    }  # fmt: skip
    return order[operator]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConfigError(f"`{text[at : at + 20]}` is no part of a condition")
        yield str(match.lastgroup), match[str(match.lastgroup)]
        at = match.end()


Tokens = Sequence[tuple[str, str]]


def _either(tokens: Tokens, at: int, depth: int) -> tuple[Node, int]:
    if depth > _DEPTH_MAX:
        raise ConfigError("a condition is nested too deeply")
    return _chain(tokens, at, "or", lambda held, place: _chain(
        held, place, "and", lambda inner, spot: _negated(inner, spot, depth)
    ))  # fmt: skip


def _chain(
    tokens: Tokens, at: int, word: str, operand: Callable[[Tokens, int], tuple[Node, int]]
) -> tuple[Node, int]:
    node, at = operand(tokens, at)
    parts = [node]
    while at < len(tokens) and tokens[at] == ("name", word):
        node, at = operand(tokens, at + 1)
        parts.append(node)
    return (parts[0] if len(parts) == 1 else Node(kind=word, parts=tuple(parts))), at


def _negated(tokens: Tokens, at: int, depth: int) -> tuple[Node, int]:
    if at < len(tokens) and tokens[at] == ("name", "not"):
        node, at = _negated(tokens, at + 1, depth)
        return Node(kind="not", parts=(node,)), at
    node, at = _term(tokens, at, depth)
    if at < len(tokens) and tokens[at][0] == "mark" and tokens[at][1] not in "()":
        operator = tokens[at][1]
        right, at = _term(tokens, at + 1, depth)
        return Node(kind=operator, parts=(node, right)), at
    return node, at


def _term(tokens: Tokens, at: int, depth: int) -> tuple[Node, int]:
    if at >= len(tokens):
        raise ConfigError("a condition ends too early")
    kind, text = tokens[at]
    if text == "(":
        node, at = _either(tokens, at + 1, depth + 1)
        return node, _closed(tokens, at)
    if kind == "string":
        return Node(kind="literal", value=text[1:-1]), at + 1
    if kind == "number":
        return Node(kind="literal", value=float(text) if "." in text else int(text)), at + 1
    if text in ("true", "false"):
        return Node(kind="literal", value=text == "true"), at + 1
    if kind != "name" or text in ("and", "or", "not"):
        raise ConfigError(f"`{text}` stands where a fact should in a condition")
    if tokens[at + 1 : at + 2] == [("mark", "(")]:
        return _asked(tokens, at, text, depth)
    return Node(kind="name", value=text), at + 1


def _asked(tokens: Tokens, at: int, word: str, depth: int) -> tuple[Node, int]:
    if word not in (*_SCOPES, "differs"):
        raise ConfigError(f"a condition can't ask `{word}(...)`")
    node, at = _either(tokens, at + 2, depth + 1)
    if word != "differs":
        return Node(kind=word, parts=(node,)), _closed(tokens, at)
    if node.kind != "name":
        raise ConfigError("`differs(...)` takes the name of one fact")
    return Node(kind="differs", value=node.value), _closed(tokens, at)


def _closed(tokens: Tokens, at: int) -> int:
    if tokens[at : at + 1] != [("mark", ")")]:
        raise ConfigError("a bracket of a condition is not closed")
    return at + 1

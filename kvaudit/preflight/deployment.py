"""The deployment model: roles with what each source says of them, and what no source says."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from kvaudit.preflight.conditions import UNKNOWN, Value
from kvaudit.preflight.options import DEFAULTS, ENVIRONMENT, derived_fact
from kvaudit.preflight.versions import parse_version

_OPEN = re.compile(r"\$[({]?[A-Za-z_]")
Scalar = None | bool | int | float | str


class Origin(IntEnum):
    """How near to the running server a statement is; the nearer one wins."""

    MODEL = 0
    FILE = 1  # a file of options; flags win over it
    ENVIRONMENT = 2
    ARGUMENT = 3
    SAID = 4  # the server says it of itself: a page, a metric, its start-up log
    USER = 5  # the user says it on kvaudit's command line


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and who says it.

    Attributes:
        value: As it was understood.
        origin: How near to the server.
        where: File and place, for people.
    """

    value: Scalar
    origin: Origin
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one source says of one role.

    Attributes:
        where: The source.
        engine: `sglang`, `vllm`, ...; None if it does not say.
        role: `prefill`, `decode`, `unified`, `gateway`, `store`; None if it does not say.
        workload: Name that keeps two roles of a kind apart; None if it has none.
        version: Of the engine.
        settings: By the engine's own name for them, or one of `options.ALIASES`.
        is_complete: Whether every option is there, so that one left out has its default.
        lacks_files_only: Whether it would be complete with the files that it names.
        tells_environment: Whether a variable that is not among the settings is not set.
        is_config: Whether it is a file of options, and no launch.
        notes: What could not be understood.
    """

    where: str
    engine: str | None = None
    role: str | None = None
    workload: str | None = None
    version: Setting | None = None
    settings: Mapping[str, Setting] = field(default_factory=dict)
    is_complete: bool = False
    lacks_files_only: bool = False
    tells_environment: bool = False
    is_config: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One role of the deployment, all sources taken together; see `Piece`."""

    role: str
    engine: str | None
    workload: str | None
    version: Setting | None
    settings: Mapping[str, Setting]
    is_complete: bool
    tells_environment: bool
    sources: tuple[str, ...]

    @property
    def name(self) -> str:
        """The role, and the workload where there is one."""
        return f"{self.role} ({self.workload})" if self.workload else self.role

    def fact(self, name: str) -> Value:
        """Return what is known by a name; UNKNOWN if no source says it."""
        if name == "engine":
            return self.engine or UNKNOWN
        if name == "role":
            return self.role
        if name == "version":
            return UNKNOWN if self.version is None else str(self.version.value)
        held = self.settings.get(name)
        if held is not None:
            # A variable that no source sets may hold anything.
            is_open = isinstance(held.value, str) and _OPEN.search(held.value) is not None
            return UNKNOWN if is_open else held.value
        derived = derived_fact(name, self.engine, self.fact)
        if derived is not None:
            return None if derived == "" else derived
        is_told = self.tells_environment if name.startswith(ENVIRONMENT) else self.is_complete
        if not is_told:
            return UNKNOWN
        return DEFAULTS.get(self.engine or "", {}).get(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What is to go live, as far as the sources say.

    Attributes:
        roles: Engines, and the stores and gateways round them.
        conflicts: Where two sources disagree, and which wins.
        notes: What was read and not understood.
    """

    roles: tuple[Role, ...]
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_apart(self) -> bool:
        """Whether prefill and decode are different servers."""
        return any(role.role in ("prefill", "decode") for role in self.roles)

    def of(self, name: str) -> tuple[Role, ...]:
        """Return every role of one name."""
        return tuple(role for role in self.roles if role.role == name)


def assemble(pieces: Iterable[Piece]) -> Deployment:
    """Join what the sources say into roles.

    A piece belongs to the role of its name, engine and workload; one without a workload belongs to
    the only role that fits, if there is one.
    """
    pieces = list(pieces)
    models = [piece for piece in pieces if piece.role == MODEL]
    joined: list[list[Piece]] = []
    # Pieces that name themselves come first, so that nameless ones find their role.
    servers = [piece for piece in pieces if piece.role != MODEL]
    for piece in sorted(servers, key=lambda held: (held.role is None, held.workload is None)):
        fitting = [group for group in joined if _fits(group, piece)]
        if len(fitting) == 1:
            fitting[0].append(piece)
        else:
            joined.append([piece])
    for group in joined:
        # Every engine of a deployment serves the model; stores and gateways hold none.
        if not any(piece.role in ("store", "gateway") for piece in group):
            group += models
    conflicts: list[str] = []
    roles = tuple(_role(group, conflicts) for group in joined)
    roles += _implied(roles)
    return Deployment(
        roles=tuple(sorted(roles, key=lambda role: (_ORDER.get(role.role, 9), role.name))),
        conflicts=tuple(conflicts),
        notes=tuple(dict.fromkeys(note for group in joined for piece in group
                                  for note in piece.notes)),
    )  # fmt: skip


def _implied(roles: tuple[Role, ...]) -> tuple[Role, ...]:
    """Return the LMCache that an engine's options load and of which no source tells more."""
    users = [
        role for role in roles
        if "lmcache" in str(role.settings["kv_connector"].value if "kv_connector" in role.settings
                            else "").lower()
        or ("enable_lmcache" in role.settings and role.settings["enable_lmcache"].value is True)
    ]  # fmt: skip
    if not users or any(role.engine == "lmcache" for role in roles):
        return ()
    return (
        Role(role="store", engine="lmcache", workload="lmcache", version=None, settings={},
             is_complete=False, tells_environment=False, sources=users[0].sources),
    )  # fmt: skip


MODEL = "model"  # the role of a piece that tells of the model, whoever serves it
_ORDER = {"prefill": 0, "decode": 1, "unified": 2, "gateway": 3, "store": 4}


def _fits(group: list[Piece], piece: Piece) -> bool:
    same = (
        ("engine", piece.engine),
        ("role", piece.role),
        ("workload", piece.workload),
    )
    return all(
        value is None or all(getattr(held, name) in (None, value) for held in group)
        for name, value in same
    ) and not any(
        _measures_otherwise(held, piece) or _is_launched_otherwise(held, piece) for held in group
    )


def _measures_otherwise(first: Piece, second: Piece) -> bool:
    """Return whether two servers told of their pools, each its own."""
    one, other = (piece.settings.get("pool_tokens") for piece in (first, second))
    return one is not None and other is not None and one.value != other.value


# Options that the servers of one kind differ in anyway.
_OWN_OPTIONS = re.compile(
    r"(host|port|node_rank|rank|nnodes|dist_init_addr|base_gpu_id|gpu_id_step|served_model_name"
    r"|log_\w+|\w*_port|\w*_host|\w*_ib_device|enable_metrics|api_key|admin_api_key"
    r"|data_parallel_(start_)?rank|kv_transfer_config)"
)


def _is_launched_otherwise(first: Piece, second: Piece) -> bool:
    """Return whether two launches have different options, so that they start different servers."""
    one, other = (
        {name: held.value for name, held in piece.settings.items()
         if held.origin is Origin.ARGUMENT and not _OWN_OPTIONS.fullmatch(name)}
        for piece in (first, second)
    )  # fmt: skip
    return bool(one) and bool(other) and one != other


def _role(group: list[Piece], conflicts: list[str]) -> Role:
    settings: dict[str, Setting] = {}
    version: Setting | None = None
    label = next((piece.role for piece in group if piece.role not in (None, MODEL)), None)
    label = label or "unified"
    for piece in group:
        version = _nearer("version", version, piece.version, label, conflicts)
        for name, setting in piece.settings.items():
            chosen = _nearer(name, settings.get(name), setting, label, conflicts)
            if chosen is not None:
                settings[name] = chosen
    return Role(
        role=label,
        engine=next((piece.engine for piece in group if piece.engine), None),
        workload=next((piece.workload for piece in group if piece.workload), None),
        version=version,
        settings=settings,
        is_complete=any(piece.is_complete for piece in group),
        tells_environment=any(piece.tells_environment for piece in group),
        sources=tuple(dict.fromkeys(piece.where for piece in group)),
    )


def _nearer(
    name: str, first: Setting | None, second: Setting | None, role: str, conflicts: list[str]
) -> Setting | None:
    """Return the statement that wins; of two equally near ones the later."""
    if first is None or second is None:
        return second if first is None else first
    if min(first.origin, second.origin) <= Origin.FILE and None not in (first.value, second.value):
        return max(first, second, key=lambda held: held.origin)  # an override is no contradiction
    if first.value == second.value or (name == "version" and _same_version(first, second)):
        return max(first, second, key=lambda held: held.origin)
    # A server says "auto" or nothing where it was not told; that contradicts nobody.
    if second.value is None or (second.value == "auto" and first.value is not None):
        return first
    if first.value is None or first.value == "auto":
        return second
    loser, winner = (first, second) if second.origin >= first.origin else (second, first)
    conflicts.append(
        f"{role}: `{name}` is {loser.value} in {loser.where} and {winner.value} in"
        f" {winner.where}; the latter counts, "
        + ("since it is nearer to the running server" if winner.origin > loser.origin
           else "since it comes later")
    )  # fmt: skip
    return winner


def _same_version(first: Setting, second: Setting) -> bool:
    one, other = (parse_version(str(held.value)) for held in (first, second))
    return one is not None and one == other


def with_setting(piece: Piece, name: str, value: Scalar, where: str) -> Piece:
    """Return the piece with a value that the user gave."""
    held = Setting(value=value, origin=Origin.USER, where=where)
    return replace(piece, settings={**piece.settings, name: held})


def with_version(piece: Piece, version: str, where: str) -> Piece:
    """Return the piece with a version that the user gave."""
    return replace(piece, version=Setting(value=version, origin=Origin.USER, where=where))

"""EngineConfig: sizes, devices, faults and fixes of one reference deployment, checked once.

The default sizes are those of the August 2026 incident at about 1:512: a context of 2,048 tokens
and a prefill pool of 1,328. Without torch, so that a plan can be priced without it.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from engine.faults import FaultPlan, Need
from engine.model_folders import FETCHABLE
from kvaudit.config import DEVICES, DTYPES
from kvaudit.errors import ConfigError, EngineError, StartRefusedError, UnknownNameError

# Tokens that an admitted prompt must stay below context and pool: one for the position that the
# next token takes, five that SGLang 0.5.19 keeps free on top of it.
LIMIT_MARGIN = 6

# So many turns of the wire after its room has failed, what was under way lands.
LATE_TURNS = 8

# `tags` computes nothing: the stand-in whose keys say who wrote them.
MODELS = ("copier", "smollm2", "tags")
GRANULARITIES = ("token", "page")
SANITIZER_MODES = ("off", "sample", "full")
SANITIZER_ACTIONS = ("log", "raise")

# The field that switches on what a fault needs; adapters come with the model.
SWITCHES = {Need.PREFIX_CACHE: "prefix_cache", Need.OVERLAP: "overlap"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides what the engine computes.

    Attributes:
        model: Built-in model or a local folder.
        device: `auto` (CUDA where it is), `cpu`, `cuda` or `cuda:N`.
        prefill_device, decode_device: Device of one role; None = `device`.
        dtype: `float32`, `bfloat16`, `float16`, or `auto`.
        context_tokens: Advertised context, prompt and answer together.
        page_size: Tokens in a page.
        prefill_pool_tokens, decode_pool_tokens: KV pool of each role; multiples of the page size.
        chunk_tokens: Prompt tokens that prefill computes in one step, all requests together.
        running_max: Rows of each role's page table: requests that hold pages at one time.
        queue_max: Requests alive at one time; more are refused with 429.
        wire_pages_per_step: Pages that the wire moves in one step.
        wire_late_turns: So many turns of the wire after its room has failed, what was under way
            lands.
        overlap: Decode launches its next step before it has heard of cancels: what a cancelled
            request holds goes back when the step after its last one begins.
        prefix_cache: Serve prompts from finished pages of earlier prompts (prefill role).
        hash_bits: Width of a prefix-cache key, in bits.
        waiting_timeout_s: How long decode waits for prefill, in seconds of engine time.
        step_ns: Engine time that passes in a step in which prefill does not compute, in
            nanoseconds. A prompt that waits its turn at prefill is therefore never late.
        faults: Fault and fixes.
        granularity: What `checksum` and `coverage` compare: every `token`, or whole pages, as some
            engines do; the latter lets a cut inside the last page pass.
        deterministic: Compute each sequence by itself, so that no request's logits depend on its
            company.
        sanitizer: `off`, `sample` or `full`; see `engine.sanitizer`.
        on_violation: `raise` stops the engine before the token leaves, `log` notes and goes on.
        sanitizer_share: Share of a request's steps that `sample` checks slot by slot.
        quarantine_pages: Freed pages of each role that wait before they are given out again.
        trace: Keep the ground truth of who wrote and read every slot.
        seed: Rooms and the seeds of requests that bring none come from it.
    """

    model: str = "copier"
    device: str = "auto"
    prefill_device: str | None = None
    decode_device: str | None = None
    dtype: str = "float32"
    context_tokens: int = 2048
    page_size: int = 16
    prefill_pool_tokens: int = 1328
    decode_pool_tokens: int = 4096
    chunk_tokens: int = 256
    running_max: int = 64
    queue_max: int = 4096
    wire_pages_per_step: int = 32
    wire_late_turns: int = LATE_TURNS
    overlap: bool = False
    prefix_cache: bool = False
    hash_bits: int = 128
    waiting_timeout_s: float = 2.0
    step_ns: int = 1_000_000
    faults: FaultPlan = field(default_factory=FaultPlan)
    granularity: str = "token"
    deterministic: bool = False
    sanitizer: str = "off"
    on_violation: str = "raise"
    sanitizer_share: float = 1 / 16
    quarantine_pages: int = 0
    trace: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        """Raise ConfigError for the first value that does not fit."""
        _check_names(self)
        _check_sizes(self)
        _check_fault(self)

    @property
    def prefill_limit(self) -> int:
        """Prompts of this length or more are refused by prefill, in tokens."""
        return min(self.context_tokens, self.prefill_pool_tokens) - LIMIT_MARGIN

    @property
    def decode_limit(self) -> int:
        """Prompts of this length or more are refused by decode, in tokens."""
        return min(self.context_tokens, self.decode_pool_tokens) - LIMIT_MARGIN

    @property
    def total_max(self) -> int:
        """Prompt and answer together never pass this length, in tokens (decode's rule)."""
        return min(self.context_tokens, self.decode_pool_tokens) - 1

    @property
    def waiting_timeout_ns(self) -> int:
        """`waiting_timeout_s` in nanoseconds."""
        return round(self.waiting_timeout_s * 1e9)

    def pages(self, tokens: int) -> int:
        """Return how many pages hold `tokens` tokens."""
        return -(-tokens // self.page_size)


def sized_for(model: str) -> EngineConfig:
    """Return the default configuration of a model: small for `smollm2`, which is slow on a CPU."""
    if model.split(":")[0] == "smollm2":
        return EngineConfig(
            model=model, context_tokens=512, prefill_pool_tokens=256, decode_pool_tokens=1024
        )
    return EngineConfig(model=model)


def check_model(name_or_path: str) -> None:
    """Refuse a model that is neither built in nor a folder; what is in the folder is not looked at.

    Raises:
        EngineError: It is written as a folder and is not there.
        UnknownNameError: It is no name, with the nearest one.
    """
    known = {*MODELS, *FETCHABLE}
    if name_or_path in known or (name_or_path and Path(name_or_path).is_dir()):
        return
    if "/" in name_or_path or name_or_path.startswith("."):
        raise EngineError(
            f"there is no folder `{name_or_path}`",
            hint="nothing is downloaded: fetch the model first, and give its folder",
        )
    raise UnknownNameError("built-in model or folder", name_or_path, known)


def fitted(config: EngineConfig, max_positions: int) -> EngineConfig:
    """Return the configuration, scaled down in whole pages if the model has fewer positions.

    The proportions of context and pools stay, so that the band between the two limits stays too.
    """
    if config.context_tokens <= max_positions:
        return config
    page = config.page_size

    def scaled(tokens: int) -> int:
        return max(page, tokens * max_positions // config.context_tokens // page * page)

    return replace(
        config,
        context_tokens=max_positions,
        prefill_pool_tokens=scaled(config.prefill_pool_tokens),
        decode_pool_tokens=scaled(config.decode_pool_tokens),
    )


def with_needs(config: EngineConfig, plan: FaultPlan) -> tuple[EngineConfig, tuple[str, ...]]:
    """Return the configuration with `plan` and the parts its fault needs, and their names.

    The names are those of parts that were off before; the healthy twin needs them on as well.
    """
    missing = [
        need
        for need in (plan.spec.needs if plan.spec is not None else ())
        if need in SWITCHES and not getattr(config, SWITCHES[need])
    ]
    changes = {SWITCHES[need]: True for need in missing}
    switched = tuple(need.value for need in missing)
    return replace(config, faults=plan, **changes), switched  # type: ignore[arg-type]


def start_check(config: EngineConfig) -> None:
    """Refuse a deployment in which a role's pool can't hold one full context.

    Raises:
        StartRefusedError: A prompt within the advertised context would be refused by one role and
            taken by the other.
    """
    for role, pool in (
        ("prefill", config.prefill_pool_tokens),
        ("decode", config.decode_pool_tokens),
    ):
        if pool < config.context_tokens:
            raise StartRefusedError(
                f"the {role} pool holds {pool} tokens, but the advertised context is"
                f" {config.context_tokens}",
                hint=f"raise the {role} pool to {config.context_tokens} tokens, or advertise a"
                f" context of at most {pool}",
            )


def _check_names(config: EngineConfig) -> None:
    for device in (config.device, config.prefill_device, config.decode_device):
        if device is None:
            continue
        kind, _, index = device.partition(":")
        if kind not in DEVICES:
            raise UnknownNameError("device", device, DEVICES)
        if index and not (kind == "cuda" and index.isdecimal()):
            raise ConfigError(f"`{device}` is no device", hint="write `cuda:0`, `cuda` or `cpu`")
    if config.dtype not in DTYPES:
        raise UnknownNameError("dtype", config.dtype, DTYPES)
    for what, name, known in (
        ("sanitizer mode", config.sanitizer, SANITIZER_MODES),
        ("action on a violation", config.on_violation, SANITIZER_ACTIONS),
    ):
        if name not in known:
            raise UnknownNameError(what, name, known)
    if config.granularity not in GRANULARITIES:
        raise UnknownNameError("granularity", config.granularity, GRANULARITIES)


def _check_sizes(config: EngineConfig) -> None:
    for name in (
        "context_tokens", "page_size", "prefill_pool_tokens", "decode_pool_tokens", "chunk_tokens",
        "running_max", "queue_max", "wire_pages_per_step", "wire_late_turns", "hash_bits",
        "step_ns",
    ):  # fmt: skip
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"`{name}` is {value!r}", hint="a size is a whole number above 0")
    if config.hash_bits > 128:
        raise ConfigError(f"`hash_bits` is {config.hash_bits}", hint="choose 1 to 128")
    if not 0 < config.sanitizer_share <= 1:
        raise ConfigError(
            f"`sanitizer_share` is {config.sanitizer_share}", hint="choose a share up to 1"
        )
    if config.quarantine_pages < 0:
        raise ConfigError(
            f"`quarantine_pages` is {config.quarantine_pages}", hint="choose 0 or more"
        )
    if config.waiting_timeout_s <= 0:
        raise ConfigError(
            f"`waiting_timeout_s` is {config.waiting_timeout_s}", hint="choose a time above 0"
        )
    if config.context_tokens <= LIMIT_MARGIN + 1:
        raise ConfigError(
            f"a context of {config.context_tokens} tokens admits no prompt",
            hint=f"choose at least {LIMIT_MARGIN + 2}",
        )
    for name in ("prefill_pool_tokens", "decode_pool_tokens"):
        _check_pool(name, getattr(config, name), config.page_size)


def _check_pool(name: str, tokens: int, page_size: int) -> None:
    if tokens < page_size:
        raise ConfigError(
            f"`{name}` is {tokens}, smaller than one page of {page_size}",
            hint=f"choose at least {page_size}, or a smaller page",
        )
    if tokens % page_size:
        below = tokens - tokens % page_size
        raise ConfigError(
            f"`{name}` is {tokens}, no multiple of the page size {page_size}",
            hint=f"choose {below} or {below + page_size}",
        )
    if tokens <= LIMIT_MARGIN + 1:
        raise ConfigError(
            f"a pool of {tokens} tokens (`{name}`) admits no prompt",
            hint=f"choose at least {page_size * -(-(LIMIT_MARGIN + 2) // page_size)}",
        )


def _check_fault(config: EngineConfig) -> None:
    if config.faults.every < 1 or config.faults.first < 0:
        raise ConfigError("a fault strikes at every n-th occasion, n at least 1, from one on")
    spec = config.faults.spec
    for need in spec.needs if spec is not None else ():
        if need in SWITCHES and not getattr(config, SWITCHES[need]):
            raise ConfigError(
                f"the fault `{config.faults.fault}` can't strike without the part `{need}`",
                hint=f"switch it on: `{SWITCHES[need]}`",
            )


FIELD_NAMES = tuple(item.name for item in fields(EngineConfig))

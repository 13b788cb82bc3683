"""What a server says of itself, and how it is read off the server's own pages.

`None` means that the server did not say. Lengths are in tokens. The parsers are pure: a client
fetches the pages, `facts_of` understands them. They match by key and tolerate absence, since names
drift from version to version. Checked against pages of vLLM 0.32.0, SGLang 0.5.23, llama.cpp and
`transformers serve` 5.24; those of TensorRT-LLM, TGI, LMDeploy and Ollama are read as documented.
"""

import json
import math
import re
from dataclasses import dataclass

from kvaudit.findings import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFacts:
    """One role of a server; a server that is not disaggregated has the one role `unified`.

    Attributes:
        role: `prefill`, `decode` or `unified`.
        pool_tokens: Size of the KV pool, in tokens.
        page_size: Tokens in a page.
        max_input_tokens: Longest prompt that this role admits, by its own rule.
    """

    role: str
    pool_tokens: int | None = None
    page_size: int | None = None
    max_input_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One target, as far as it is known.

    Attributes:
        kind: `kvaudit-reference`, `vllm`, `sglang`, `tensorrt-llm`, `tgi`, `llama.cpp`, `lmdeploy`,
            `ollama`, `transformers`, or `unknown`, as every other OpenAI-compatible API is.
        version: Version string as reported.
        model: Model name to ask for.
        models: All served names, adapters included.
        context_tokens: Advertised context, prompt and answer together.
        roles: Facts per role.
        prefix_cache: Whether prompts are served from a prefix cache.
        returns_logprobs: Whether answers carry log-probabilities of emitted tokens.
        returns_token_ids: Whether answers carry the ids of emitted tokens.
        dtype: Number format that the model computes in, such as `float32` or `bfloat16`.
        probed_right_tokens, probed_over_tokens: Not told but found by probing: the longest prompt
            that was answered right, and the shortest that was not.
        probed_past: What happens from there on: `refused`, `wrong`, `truncated` or `silent`.
        probed_ceiling_tokens: Longest prompt under the first refusal, where that lies further up.
        probed_kept_tokens: What is kept of a prompt that is cut.
        probed_sum_tokens: Largest sum of prompts in flight together that were answered right, where
            a larger one was not.
    """

    kind: str = "unknown"
    version: str | None = None
    model: str | None = None
    models: tuple[str, ...] = ()
    context_tokens: int | None = None
    roles: tuple[RoleFacts, ...] = ()
    prefix_cache: bool | None = None
    returns_logprobs: bool | None = None
    returns_token_ids: bool | None = None
    dtype: str | None = None
    probed_right_tokens: int | None = None
    probed_over_tokens: int | None = None
    probed_past: str | None = None
    probed_ceiling_tokens: int | None = None
    probed_kept_tokens: int | None = None
    probed_sum_tokens: int | None = None

    def role(self, name: str) -> RoleFacts | None:
        """Return the facts of one role; a unified server answers for every role."""
        by_name = {facts.role: facts for facts in self.roles}
        return by_name.get(name) or by_name.get("unified")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswers:
    """What a server answered on its own pages, decoded but not yet understood.

    Attributes:
        models: Body of `/v1/models`.
        version: Body of `/version` (vLLM, TensorRT-LLM).
        server_info: Body of `/server_info` (SGLang, kvaudit).
        info: Body of `/info` (TGI).
        props: Body of `/props` (llama.cpp).
        ollama_version, ollama_running: Bodies of `/api/version` and `/api/ps` (Ollama).
        metrics: Text of `/metrics`: in Prometheus' format, or JSON (TensorRT-LLM).
    """

    models: Json = None
    version: Json = None
    server_info: Json = None
    info: Json = None
    props: Json = None
    ollama_version: Json = None
    ollama_running: Json = None
    metrics: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of a Prometheus page."""

    name: str
    labels: dict[str, str]
    value: float


def facts_of(answers: ServerAnswers, *, model: str | None = None) -> ServerFacts:
    """Return what the answers say, whichever server gave them; what they don't say is None.

    Args:
        answers: The server's own pages.
        model: The model to ask for; None = the first one that is no adapter of another.
    """
    entries = _entries(answers.models)
    chosen = model or _first_model(entries)
    entry = next((item for item in entries if item.get("id") == chosen), {})
    kind = _kind(entry or (entries[0] if entries else {}), answers)
    samples = parse_metrics(answers.metrics or "")
    return ServerFacts(
        kind=kind,
        version=_version(kind, answers),
        model=chosen,
        models=tuple(str(item["id"]) for item in entries),
        context_tokens=_context(entry, answers, samples),
        roles=_roles(kind, answers, samples),
        prefix_cache=_prefix_cache(answers, samples),
        # What the docs of the server promise; None = an answer must show it.
        returns_logprobs=True if kind in ("kvaudit-reference", "vllm") else None,
        returns_token_ids=True if kind in ("kvaudit-reference", "vllm") else None,
        dtype=_dtype(answers),
    )


def parse_metrics(text: str) -> tuple[Sample, ...]:
    """Return the samples of a Prometheus page; lines that are none are passed over."""
    samples = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        value = _number(match["value"])
        if value is None:
            continue
        labels = {
            label["key"]: _ESCAPE.sub(_unescaped, label["value"])
            for label in _LABEL.finditer(match["labels"] or "")
        }
        samples.append(Sample(name=match["name"], labels=labels, value=value))
    return tuple(samples)


_SAMPLE = re.compile(
    r"(?P<name>[A-Za-z_:][A-Za-z0-9_:]*)(?:\{(?P<labels>.*)\})?"
    r"[ \t]+(?P<value>\S+)(?:[ \t]+-?\d+)?$"
)
_LABEL = re.compile(r'(?P<key>[A-Za-z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _entries(models: Json) -> list[dict[str, Json]]:
    data = models.get("data") if isinstance(models, dict) else None
    if not isinstance(data, list):
        return []
    return [item for item in data if isinstance(item, dict) and isinstance(item.get("id"), str)]


def _first_model(entries: list[dict[str, Json]]) -> str | None:
    bases = [item for item in entries if not item.get("parent")]
    return str((bases or entries)[0]["id"]) if entries else None


_KIND_OF_OWNER = {
    "vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "lmdeploy": "lmdeploy",
    "tensorrt_llm": "tensorrt-llm", "tensorrt-llm": "tensorrt-llm",
}  # fmt: skip


def _kind(entry: dict[str, Json], answers: ServerAnswers) -> str:
    owner = str(entry.get("owned_by") or "").lower()
    if owner in _KIND_OF_OWNER:
        return _KIND_OF_OWNER[owner]
    if _mapping(answers.server_info).get("server") == "kvaudit-reference":
        return "kvaudit-reference"
    tgi = _mapping(answers.info)
    if {"docker_label", "max_batch_total_tokens"} & set(tgi) or "text-generation" in str(
        tgi.get("router")
    ):
        return "tgi"
    if "default_generation_settings" in _mapping(answers.props):
        return "llama.cpp"
    if _mapping(answers.ollama_version) and isinstance(
        _mapping(answers.ollama_running).get("models"), list
    ):
        return "ollama"
    if _iterations(answers):
        return "tensorrt-llm"
    # `transformers serve` tells its name nowhere; this shape of an entry is its own.
    if owner == "local" and "value" in _mapping(entry.get("status")):
        return "transformers"
    return "unknown"


def _version(kind: str, answers: ServerAnswers) -> str | None:
    pages = {
        "llama.cpp": _mapping(answers.props).get("build_info"),
        "sglang": _mapping(answers.server_info).get("version"),
        "kvaudit-reference": _mapping(answers.server_info).get("version"),
        "tgi": _mapping(answers.info).get("version"),
        "ollama": _mapping(answers.ollama_version).get("version"),
    }
    said = pages.get(kind) or _mapping(answers.version).get("version")
    return said if isinstance(said, str) else None


def _dtype(answers: ServerAnswers) -> str | None:
    said = _mapping(answers.server_info).get("dtype")
    return said if isinstance(said, str) and said != "auto" else None


def _context(
    entry: dict[str, Json], answers: ServerAnswers, samples: tuple[Sample, ...]
) -> int | None:
    settings = _mapping(_mapping(answers.props).get("default_generation_settings"))
    return (
        _whole(entry.get("max_model_len"))
        or _whole(_mapping(entry.get("meta")).get("n_ctx"))
        or _whole(_mapping(answers.server_info).get("context_length"))
        or _whole(settings.get("n_ctx"))
        or _whole(_mapping(answers.info).get("max_total_tokens"))
        or _ollama_context(entry, answers)
        or _least(samples, "context_len")
    )


def _ollama_context(entry: dict[str, Json], answers: ServerAnswers) -> int | None:
    """Return the context that a model is loaded with, normally far below the model's own."""
    for running in _sequence(_mapping(answers.ollama_running).get("models")):
        held = _mapping(running)
        if entry.get("id") in (held.get("name"), held.get("model")):
            return _whole(held.get("context_length"))
    return None


def _roles(kind: str, answers: ServerAnswers, samples: tuple[Sample, ...]) -> tuple[RoleFacts, ...]:
    info = _mapping(answers.server_info)
    by_role = _mapping(info.get("roles"))
    if by_role:
        return tuple(_sglang_role(_mapping(page), name=name) for name, page in by_role.items())
    if kind == "vllm":
        return _vllm_roles(samples)
    if kind == "tgi":
        return _tgi_roles(_mapping(answers.info))
    if kind == "tensorrt-llm":
        return _iteration_roles(answers)
    if info.get("max_total_num_tokens") is not None or info.get("scheduler_info"):
        return (_sglang_role(info),)
    return _metric_roles(samples)


def _vllm_roles(samples: tuple[Sample, ...]) -> tuple[RoleFacts, ...]:
    """Return one unified role from `vllm:cache_config_info`, the smallest engine's pool.

    Engines of one deployment (data parallel) have a pool each; a request lives in one of them.
    """
    pools = []
    for sample in samples:
        if not sample.name.endswith("cache_config_info"):
            continue
        page_size = _whole(sample.labels.get("effective_attention_block_size")) or _whole(
            sample.labels.get("block_size")
        )
        blocks = _whole(sample.labels.get("num_gpu_blocks"))
        size = _whole(sample.labels.get("block_size"))
        pool = _whole(sample.labels.get("kv_cache_size_tokens"))
        pools.append((pool or (blocks * size if blocks and size else None), page_size))
    if not pools:
        return ()
    known = [pool for pool, _ in pools if pool is not None]
    return (
        RoleFacts(role="unified", pool_tokens=min(known) if known else None, page_size=pools[0][1]),
    )


def _tgi_roles(info: dict[str, Json]) -> tuple[RoleFacts, ...]:
    limit = _whole(info.get("max_input_tokens")) or _whole(info.get("max_input_length"))
    pool = _whole(info.get("max_batch_total_tokens"))
    if limit is None and pool is None:
        return ()
    return (RoleFacts(role="unified", pool_tokens=pool, max_input_tokens=limit),)


def _iteration_roles(answers: ServerAnswers) -> tuple[RoleFacts, ...]:
    """Return one unified role from TensorRT-LLM's statistics; the last iteration counts."""
    for stats in reversed(_iterations(answers)):
        cache = _mapping(stats.get("kvCacheStats"))
        blocks, page = _whole(cache.get("maxNumBlocks")), _whole(cache.get("tokensPerBlock"))
        if page is not None:
            pool = blocks * page if blocks is not None else None
            return (RoleFacts(role="unified", pool_tokens=pool, page_size=page),)
    return ()


def _iterations(answers: ServerAnswers) -> list[dict[str, Json]]:
    """Return the iterations that TensorRT-LLM's `/metrics` lists as JSON; empty if it has none."""
    text = (answers.metrics or "").lstrip()
    if not text.startswith("["):
        return []
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [item for item in _sequence(said) if isinstance(item, dict) and "kvCacheStats" in item]


def _sglang_role(info: dict[str, Json], name: str | None = None) -> RoleFacts:
    """Return a role from SGLang's `/server_info`; the smallest data-parallel rank counts."""
    scheduler = _mapping(info.get("scheduler_info"))
    ranks = [_mapping(state) for state in _sequence(info.get("internal_states"))]
    capacities = [
        _whole(_mapping(rank.get("memory_usage")).get("token_capacity")) for rank in ranks
    ]
    pools = [
        _whole(info.get("max_total_num_tokens")),
        _whole(scheduler.get("max_total_num_tokens")),
        *capacities,
    ]
    limit = _whole(info.get("max_req_input_len")) or _whole(scheduler.get("max_req_input_len"))
    known = [pool for pool in pools if pool is not None]
    return RoleFacts(
        role=name or _role_name(info.get("disaggregation_mode")),
        pool_tokens=min(known) if known else None,
        page_size=_whole(info.get("page_size")),
        # Lengths of `max_req_input_len` and more are refused.
        max_input_tokens=limit - 1 if limit is not None else None,
    )


def _metric_roles(samples: tuple[Sample, ...]) -> tuple[RoleFacts, ...]:
    """Return the roles that metrics named `...max_total_num_tokens` tell of, by their label."""
    roles: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.name.split(":")[-1] in ("max_total_num_tokens", "page_size"):
            roles.setdefault(_role_name(sample.labels.get("engine_type")), []).append(sample)
    return tuple(
        RoleFacts(
            role=role,
            pool_tokens=_least(tuple(own), "max_total_num_tokens"),
            page_size=_least(tuple(own), "page_size"),
        )
        for role, own in roles.items()
    )


def _role_name(said: Json) -> str:
    return said if said in ("prefill", "decode") and isinstance(said, str) else "unified"


def _prefix_cache(answers: ServerAnswers, samples: tuple[Sample, ...]) -> bool | None:
    disabled = _mapping(answers.server_info).get("disable_radix_cache")
    if isinstance(disabled, bool):
        return not disabled
    params = _mapping(_mapping(answers.props).get("default_generation_settings")).get("params")
    reuses = _mapping(params).get("cache_prompt")
    if isinstance(reuses, bool):
        return reuses
    said = {
        sample.labels["enable_prefix_caching"]
        for sample in samples
        if "enable_prefix_caching" in sample.labels
    }
    return "True" in said if said & {"True", "False"} else None


def _least(samples: tuple[Sample, ...], name: str) -> int | None:
    """Return the least whole value above 0 of the metrics called `<prefix>:name`."""
    values = [
        int(sample.value)
        for sample in samples
        if sample.name.split(":")[-1] == name and sample.value >= 1
    ]
    return min(values, default=None)


def _whole(said: Json) -> int | None:
    """Return a number of tokens, from a JSON number or a metric's label; None unless above 0."""
    if isinstance(said, bool):
        return None
    if isinstance(said, str) and said.isascii() and said.isdecimal() and len(said) < 16:
        said = int(said)
    if isinstance(said, float) and said.is_integer():
        said = int(said)
    return said if isinstance(said, int) and said > 0 else None


def _mapping(said: Json) -> dict[str, Json]:
    return said if isinstance(said, dict) else {}


def _sequence(said: Json) -> list[Json]:
    return said if isinstance(said, list) else []

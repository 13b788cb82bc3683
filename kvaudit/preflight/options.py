"""Options of engines: their spellings, their defaults, and facts that follow from them.

An option's name here is its long flag with `_` for `-`. The tables hold what the hazards ask for
and what stands beside it; an option that is not in them is kept under its own name.
"""

import re
from collections.abc import Callable, Mapping

from kvaudit.preflight.conditions import UNKNOWN, Value
from kvaudit.preflight.versions import Version, compare, parse_version

ENGINES = (
    "sglang", "vllm", "tensorrt-llm", "tgi", "llama.cpp", "ollama", "lmdeploy", "lmcache",
    "mooncake", "litellm", "sglang-router", "aibrix", "redis-py", "kvaudit-reference",
)  # fmt: skip

# Facts that only the environment tells.
ENVIRONMENT = ("sglang_", "vllm_", "mooncake_", "lmcache_", "ollama_")

# Spelling -> name. Names that are the same for several engines stand under "".
ALIASES: Mapping[str, Mapping[str, str]] = {
    "": {
        "max_model_len": "context_length", "tensor_parallel_size": "tp_size",
        "pipeline_parallel_size": "pp_size", "data_parallel_size": "dp_size",
        "model": "model_path", "model_id": "model_path", "model_tag": "model_path",
    },
    "sglang": {
        "tp": "tp_size", "dp": "dp_size", "pp": "pp_size",
        "speculative_algo": "speculative_algorithm", "ctx_len": "context_length",
        "context_len": "context_length", "max_total_num_tokens": "pool_tokens",
    },
    "vllm": {
        "tp": "tp_size", "pp": "pp_size", "dp": "dp_size", "max_seq_len": "context_length",
        "block_size": "page_size", "lora_modules": "lora_paths",
    },
    "tgi": {"max_input_length": "max_input_tokens", "max_total_tokens": "context_length"},
    "llama.cpp": {
        "c": "ctx_size", "np": "parallel", "n_parallel": "parallel", "m": "model_path",
        "cram": "cache_ram", "md": "model_draft", "hf": "model_path", "hf_repo": "model_path",
    },
    "tensorrt-llm": {"max_seq_len": "context_length", "tp": "tp_size", "pp": "pp_size"},
    "lmdeploy": {"session_len": "context_length", "tp": "tp_size"},
    "ollama": {"ollama_context_length": "context_length"},
}  # fmt: skip

# What holds when the whole launch is known and the option is left out. Others: not set.
DEFAULTS: Mapping[str, Mapping[str, Value]] = {
    "sglang": {
        "disable_radix_cache": False, "allow_auto_truncate": False, "enable_lora": False,
        "enable_hierarchical_cache": False, "disaggregation_enable_kv_checksum": False,
        "disaggregation_transfer_backend": "mooncake", "kv_cache_dtype": "auto",
        "disable_overlap_schedule": False, "enable_dp_attention": False, "dp_size": 1,
        "tp_size": 1, "pp_size": 1,
    },
    "vllm": {
        "kv_cache_dtype": "auto", "tp_size": 1, "pp_size": 1,
        "dp_size": 1, "enable_lora": False,
    },
    "llama.cpp": {"cache_prompt": True, "parallel": 1},
}  # fmt: skip

# Flags that take no value, so that what follows one is never eaten.
SWITCHES = frozenset({
    "trust_remote_code", "enable_metrics", "enable_lora", "enable_hierarchical_cache",
    "allow_auto_truncate", "disable_radix_cache", "enable_dp_attention", "enable_prefix_caching",
    "disable_overlap_schedule", "disaggregation_enable_kv_checksum", "disable_cuda_graph",
    "enable_prompt_tokens_details", "enforce_eager", "log_requests", "enable_chunked_prefill",
    "async_scheduling", "enable_cache_report", "skip_server_warmup", "enable_torch_compile",
    "enable_auto_tool_choice", "disaggregation_decode_enable_radix_cache", "enable_expert_parallel",
})  # fmt: skip

_KNOWN_WORDS = re.compile(
    r"(model|served|tokenizer|chat|tool|reason|load|revision|host|port|tp|dp|pp|ep|tensor|pipeline"
    r"|data|expert|context|max|min|mem|gpu|kv|page|block|swap|cpu|cuda|chunked|enable|disable|no_"
    r"|disaggregation|hicache|speculative|spec|lora|quant|dtype|seed|random|log|api|ssl|trust|skip"
    r"|sampling|attention|decode|prefill|schedule|stream|watchdog|dist|nnodes|node|nccl|device"
    r"|backend|moe|deepep|eplb|mamba|swa|num|allow|override|guided|structured|limit|mm|otlp"
    r"|crash|show|collect|router|policy|pd|worker|service|config|download|root|uvicorn|enforce"
    r"|hf|hostname|sharded|cors|ctx|parallel|cache|slot|threads|batch|base|ubatch|flash|n_|ngl|jinja"
    r"|metrics|props|cont|session|async|compilation|reserved|rope|generation|json|grammar|bench"
    r"|prometheus|extra|runner|role|task|http|server|rpc|triton|torch|language|multi|preferred|weight|delete|warmup|custom|fp8|disagg)"
)


def is_known(name: str) -> bool:
    """Return whether an option looks like one of an engine that is known here."""
    return _KNOWN_WORDS.match(name) is not None or len(name) <= 3


def option_name(engine: str | None, spelling: str) -> str:
    """Return the name of an option, whatever its spelling."""
    name = spelling.lstrip("-").replace("-", "_")
    name = name if len(name) <= 2 else name.lower()
    if engine == "llama.cpp" and name.startswith("llama_arg_"):
        name = name.removeprefix("llama_arg_")
    return ALIASES.get(engine or "", {}).get(name) or ALIASES[""].get(name) or name


_HYBRID = re.compile(
    r"jamba|mamba|nemotron-?h|nemotron-nano-\d+b-v2|qwen3-next|qwen3\.5|kimi-linear|kimi-k3"
    r"|granite-4|falcon-h1|lfm2|bamba|zamba|minimax-(01|m1)|rwkv",
    re.IGNORECASE,
)
_PICTURES = re.compile(
    r"(^|[-_/.])(vl|vision|llava|omni|pixtral|internvl|minicpm-v|multimodal|molmo)", re.IGNORECASE
)

Ask = Callable[[str], Value]


def derived_fact(name: str, engine: str | None, ask: Ask) -> Value:
    """Return a fact that follows from others; None if the name is none, "" if it is not set."""
    derive = _DERIVED.get(name)
    return None if derive is None else derive(engine, ask)


def _prefix_cache(engine: str | None, ask: Ask) -> Value:
    if engine == "sglang":
        return _negated(ask("disable_radix_cache"))
    if engine == "vllm":
        return _vllm_prefix_cache(ask)
    if engine == "llama.cpp":
        return _truth(ask("cache_prompt"))
    return UNKNOWN


def _vllm_prefix_cache(ask: Ask) -> Value:
    """Return vLLM's prefix cache: on by default since the engine of 0.8, off before."""
    said, version = ask("enable_prefix_caching"), ask("version")
    if said is not None:
        return _truth(said)
    parsed = parse_version(version) if isinstance(version, str) else None
    return UNKNOWN if parsed is None else compare(parsed, ">=", _PREFIX_CACHE_BY_DEFAULT)


_PREFIX_CACHE_BY_DEFAULT = Version(release=(0, 8), stage=(4, 0), post=-1, dev=0)


def _lora(_: str | None, ask: Ask) -> Value:
    return _either(ask("enable_lora"), ask("lora_paths"))


def _speculative(_: str | None, ask: Ask) -> Value:
    return _either(
        ask("speculative_algorithm"), ask("speculative_config"), ask("speculative_model"),
        ask("model_draft"), ask("spec_type"),
    )  # fmt: skip


def _hybrid(_: str | None, ask: Ask) -> Value:
    return _named(_HYBRID, ask)


def _pictures(_: str | None, ask: Ask) -> Value:
    return _either(ask("limit_mm_per_prompt"), ask("enable_multimodal"), _named(_PICTURES, ask))


def _named(pattern: re.Pattern[str], ask: Ask) -> Value:
    # A name without the word proves nothing: a local folder may be called anything.
    model = ask("model_path")
    return True if isinstance(model, str) and pattern.search(model) else UNKNOWN


_DERIVED: Mapping[str, Callable[[str | None, Ask], Value]] = {
    "prefix_cache": _prefix_cache, "lora": _lora, "speculative": _speculative,
    "hybrid": _hybrid, "pictures": _pictures,
}  # fmt: skip


def _truth(value: Value) -> Value:
    return value if value is UNKNOWN else bool(value)


def _negated(value: Value) -> Value:
    return value if value is UNKNOWN else not value


def _either(*values: Value) -> Value:
    if any(value is not UNKNOWN and value for value in values):
        return True
    return UNKNOWN if any(value is UNKNOWN for value in values) else False

"""What the server says of itself: `/v1/models`, `/server_info`, `/metrics`.

Names follow SGLang's, one value for each role. Which fault is on is not told: a real server would
not know either.
"""

from typing import Any

from engine.config import EngineConfig
from engine.role import StepModel
from engine.stepper import EngineGauges
from kvaudit import __version__

OWNER = "kvaudit"
KIND = "kvaudit-reference"


def models_page(config: EngineConfig, model: StepModel, created: int) -> dict[str, Any]:
    """Return the base model and its adapters."""
    entries = [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": OWNER,
            "root": config.model,
            "parent": None if name == config.model else config.model,
            "max_model_len": config.context_tokens,
        }
        for name in (config.model, *model.adapters)
    ]
    return {"object": "list", "data": entries}


def server_info_page(config: EngineConfig) -> dict[str, Any]:
    """Return the arguments in force, and the pool and limit of each role."""
    return {
        "server": KIND,
        "version": __version__,
        "model_path": config.model,
        "served_model_name": config.model,
        "dtype": config.dtype,
        "context_length": config.context_tokens,
        "page_size": config.page_size,
        "chunked_prefill_size": config.chunk_tokens,
        "disable_radix_cache": not config.prefix_cache,
        "disaggregation_enable_kv_checksum": config.faults.has_fix("checksum"),
        "disaggregation_waiting_timeout_s": config.waiting_timeout_s,
        "roles": {
            "prefill": _role(config, "prefill", config.prefill_pool_tokens, config.prefill_limit),
            "decode": _role(config, "decode", config.decode_pool_tokens, config.decode_limit),
        },
    }


def metrics_page(config: EngineConfig, gauges: EngineGauges) -> str:
    """Return Prometheus' text format."""
    lines = [
        "# HELP kvaudit:context_len Maximum context length.",
        "# TYPE kvaudit:context_len gauge",
        f"kvaudit:context_len {config.context_tokens}",
        "# HELP kvaudit:num_running_reqs Requests alive.",
        "# TYPE kvaudit:num_running_reqs gauge",
        f"kvaudit:num_running_reqs {gauges.requests_alive}",
    ]
    page = config.page_size
    for name, text, value_of in (
        ("max_total_num_tokens", "Size of the KV pool, in tokens.", lambda role: role.pages * page),
        ("page_size", "KV page size, in tokens.", lambda _: page),
        ("num_pages", "Pages of the KV pool.", lambda role: role.pages),
        ("num_free_pages", "Pages that nobody holds.", lambda role: role.pages_free),
    ):
        lines += [f"# HELP kvaudit:{name} {text}", f"# TYPE kvaudit:{name} gauge"]
        lines += [
            f'kvaudit:{name}{{engine_type="{role.role}"}} {value_of(role)}' for role in gauges.roles
        ]
    lines += [
        "# HELP kvaudit:num_ended_reqs_total Ended requests by HTTP status.",
        "# TYPE kvaudit:num_ended_reqs_total counter",
    ]
    lines += [
        f'kvaudit:num_ended_reqs_total{{status="{status}"}} {count}'
        for status, count in gauges.ended
    ]
    lines += [
        "# HELP kvaudit:engine_crashes_total Steps that failed.",
        "# TYPE kvaudit:engine_crashes_total counter",
        f"kvaudit:engine_crashes_total {gauges.crashes}",
    ]
    return "\n".join(lines) + "\n"


def _role(config: EngineConfig, role: str, pool_tokens: int, limit: int) -> dict[str, Any]:
    return {
        "disaggregation_mode": role,
        "context_length": config.context_tokens,
        "page_size": config.page_size,
        "max_total_num_tokens": pool_tokens,
        # Prompts of this length and more are refused.
        "max_req_input_len": limit,
    }

"""Files of options that engines, stores and gateways read: `--config` and its like.

Whose file it is shows in its keys. A file that a launch names belongs to that launch, whose own
flags win over it; one that nobody names stands for a server of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from kvaudit.preflight.deployment import Origin, Piece, Setting
from kvaudit.preflight.launches import CONFIG_FLAGS, opened, role_of, scalar
from kvaudit.preflight.options import option_name
from kvaudit.preflight.yaml_text import mapping, sequence

# Keys that only one engine's file has, once `-` is `_`.
_SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("litellm", frozenset({"model_list", "litellm_settings", "router_settings"})),
    ("tensorrt-llm", frozenset({
        "kv_cache_config", "cuda_graph_config", "cache_transceiver_config", "scheduler_config",
        "moe_config", "context_servers", "generation_servers", "enable_chunked_context",
        "disable_overlap_scheduler", "attn_backend",
    })),
    ("lmcache", frozenset({
        "local_cpu", "max_local_cpu_size", "remote_url", "remote_serde", "local_disk",
        "save_unfull_chunk", "cache_policy", "enable_pd", "pre_caching_hash_algorithm",
    })),
    ("mooncake", frozenset({"master_server_address", "metadata_server", "local_buffer_size",
                            "global_segment_size"})),
    ("sglang", frozenset({
        "mem_fraction_static", "context_length", "max_total_tokens", "disaggregation_mode",
        "chunked_prefill_size", "disable_radix_cache", "tp_size",
    })),
    ("vllm", frozenset({
        "max_model_len", "gpu_memory_utilization", "kv_transfer_config", "enable_prefix_caching",
        "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks_override",
    })),
)  # fmt: skip
_SERVERS = {"context_servers": "prefill", "generation_servers": "decode"}  # TensorRT-LLM's roles


def read_config(document: Any, where: str) -> list[Piece]:
    """Return what one parsed file of options says; empty if it is none that is known."""
    held = {str(key).replace("-", "_"): value for key, value in mapping(document).items()}
    engine = next((engine for engine, keys in _SIGNS if keys & held.keys()), None)
    if engine is None or "apiVersion" in held or "services" in held:
        return []
    apart = {role: held[key] for key, role in _SERVERS.items() if isinstance(held.get(key), dict)}
    if apart:
        shared = {key: value for key, value in held.items() if key not in _SERVERS}
        return [_piece(engine, {**shared, **mapping(own)}, where, role)
                for role, own in apart.items()]  # fmt: skip
    return [_piece(engine, held, where, None)]


def _piece(engine: str, held: Mapping[str, Any], where: str, role: str | None) -> Piece:
    settings = {
        option_name(engine, name): Setting(value=scalar(value), origin=Origin.FILE, where=where)
        for name, value in _flat(engine, held)
    }
    settings = opened(settings, where)
    said = role or role_of(engine, settings)
    # A file that names no role may be the file of any.
    return Piece(where=where, engine=engine, role=None if said == "unified" else said,
                 settings=settings, is_config=True)  # fmt: skip


def _flat(engine: str, held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the options; those of TensorRT-LLM's and LiteLLM's sections under their own names."""
    sections = {
        "tensorrt-llm": ("kv_cache_config", "cache_transceiver_config"),
        "litellm": ("litellm_settings", "general_settings"),
    }.get(engine, ())
    for name, value in held.items():
        if name in sections:
            yield from mapping(value).items()
        else:
            yield name, value
    if engine == "litellm":
        cache = mapping(mapping(held.get("litellm_settings")).get("cache_params"))
        yield "cache_type", cache.get("type")
        yield "deployments", len(sequence(held.get("model_list")))


def linked(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces with every file joined to the launches that name it."""
    files = [piece for piece in pieces if piece.is_config]
    used: set[int] = set()
    joined = []
    for piece in pieces:
        named = {_name(str(piece.settings[flag].value)) for flag in CONFIG_FLAGS
                 if flag in piece.settings} - {""}  # fmt: skip
        own = [file for file in files
               if _name(file.where) in named and file.engine == piece.engine]  # fmt: skip
        if piece.is_config or not own:
            joined.append(piece)
            continue
        used |= {id(file) for file in own}
        joined.append(_with_files(piece, own, is_all=len(own) == len(named)))
    return [piece for piece in joined if id(piece) not in used]


def _with_files(piece: Piece, files: Sequence[Piece], *, is_all: bool) -> Piece:
    settings = dict(piece.settings)
    for file in files:
        settings = {**file.settings, **settings}
    flags = {str(piece.settings[flag].value) for flag in CONFIG_FLAGS if flag in piece.settings}
    said = [
        note
        for note in piece.notes
        if not (is_all and any(f"`{flag}` is not among" in note for flag in flags))
    ]
    engine = piece.engine or ""
    return replace(
        piece,
        settings=settings,
        role=role_of(engine, settings),
        is_complete=piece.is_complete or (piece.lacks_files_only and is_all),
        notes=tuple(said),
    )


def _name(path: str) -> str:
    return PurePosixPath(path.rsplit(", ", 1)[-1]).name

"""What a server says of itself: saved pages, metrics, and the log of its start."""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvaudit.errors import ConfigError
from kvaudit.preflight.config_files import read_config
from kvaudit.preflight.deployment import MODEL, Origin, Piece, Setting
from kvaudit.preflight.launches import opened, read_words, role_of, scalar
from kvaudit.preflight.manifests import read_documents
from kvaudit.preflight.options import option_name
from kvaudit.preflight.versions import parse_version
from kvaudit.preflight.yaml_text import mapping
from kvaudit.serverfacts import Sample, ServerAnswers, facts_of, parse_metrics

_ROLES = ("prefill", "decode", "unified", "encode")
_PAGES = ("server_info", "models", "model_info", "metrics", "version", "info", "props")
_NOT_OPTIONS = frozenset({
    "scheduler_info", "internal_states", "launch_command", "roles", "status", "version", "engine",
    "server", "role", "vllm_version", "sglang_version",
})  # fmt: skip


def read_json(text: str, where: str) -> list[Piece]:
    """Return a piece for each server that a JSON text tells of.

    Raises:
        ConfigError: It is broken or tells of no server.
    """
    try:
        value = _values(text)
    except RecursionError:
        raise ConfigError(f"`{where}` is nested too deeply") from None
    except ValueError as error:
        raise ConfigError(
            f"`{where}` is no whole JSON: {error}", hint="save the page again; nothing was used"
        ) from None
    documents = value if isinstance(value, list) else [value]
    if any(_is_manifest(document) for document in documents):
        return read_documents(documents, where)
    pieces = list(_servers(value, where, None)) or read_config(value, where)
    if not pieces:
        raise ConfigError(
            f"`{where}` is JSON, but no page of a server that is known here",
            hint="save `/server_info`, `/v1/models`, `/metrics`, `/info` or `/props`",
        )
    return pieces


def _values(text: str) -> Any:
    """Return the JSON value of a text; a list of them where several stand after one another."""
    decoder, at, values = json.JSONDecoder(), 0, []
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        values.append(value)
    return values[0] if len(values) == 1 else values


def _is_manifest(document: Any) -> bool:
    held = mapping(document)
    return "apiVersion" in held or isinstance(held.get("services"), Mapping)


def _servers(value: Any, where: str, role: str | None) -> Iterator[Piece]:
    if isinstance(value, list):
        for item in value:
            yield from _servers(item, where, role)
        return
    held = mapping(value)
    inner = mapping(held.get("text_config")) or held
    if "num_hidden_layers" in inner:
        yield _model(held, inner, where)
        return
    named = mapping(held.get("roles")) or {
        key: page for key, page in held.items() if key in _ROLES and isinstance(page, Mapping)
    }
    if named and all(key in _ROLES for key in named):
        shared = {key: page for key, page in held.items() if key not in (*_ROLES, "roles")}
        for name, page in named.items():
            yield from _servers({**shared, **mapping(page)}, where, name)
    elif isinstance(held.get("servers"), list):
        yield from _servers(held["servers"], where, role)
    elif any(isinstance(held.get(key), Mapping) for key in _PAGES):
        for key in _PAGES:
            if isinstance(held.get(key), Mapping):
                yield from _servers(held[key], where, role or _said_role(held))
    elif held:
        yield from _page(held, where, role or _said_role(held))


def _model(held: Mapping[str, Any], inner: Mapping[str, Any], where: str) -> Piece:
    """Return what a model's `config.json` says: its context, and what sizes its KV."""
    settings = {"model_config": Setting(value=json.dumps(held), origin=Origin.MODEL, where=where)}
    context = inner.get("max_position_embeddings")
    scaling = mapping(inner.get("rope_scaling") or inner.get("rope_parameters"))
    is_stretched = scaling.get("factor") not in (None, 1, 1.0) and (
        scaling.get("rope_type", scaling.get("type")) != "llama3"
    )
    notes: tuple[str, ...] = ()
    if is_stretched:
        # Engines differ in whether the factor is in the number already.
        notes = (f"{where}: the context is stretched; give it with the engine's own flag",)
    elif isinstance(context, int):
        settings["context_length"] = Setting(value=context, origin=Origin.MODEL, where=where)
    return Piece(where=where, role=MODEL, settings=settings, notes=notes)


def _said_role(page: Mapping[str, Any]) -> str | None:
    said = page.get("role")
    return said if said in _ROLES else None


def _page(page: Mapping[str, Any], where: str, role: str | None) -> Iterator[Piece]:
    if isinstance(page.get("data"), list):
        facts = facts_of(ServerAnswers(models=dict(page)))
        settings = _said({"context_length": facts.context_tokens, "model_path": facts.model}, where)
        yield Piece(where=where, engine=None if facts.kind == "unknown" else facts.kind,
                    role=role, settings=settings)  # fmt: skip
        return
    engine = _engine(page)
    if engine is None and not {"version", "context_length", "page_size"} & set(page):
        return
    config = page.get("vllm_config")
    flat = {**page, **config} if isinstance(config, Mapping) else dict(page)
    settings = {
        option_name(engine, str(key)): Setting(
            value=scalar(value), origin=Origin.SAID, where=where
        )
        for key, value in flat.items()
        if key not in _NOT_OPTIONS and (value is None or isinstance(value, bool | int | float | str)
                                        or key in ("lora_paths", "kv_transfer_config"))
    }  # fmt: skip
    settings |= _said(_measured(page), where)
    settings = opened(settings, where)
    version = next((page[key] for key in ("version", "sglang_version", "vllm_version", "build_info")
                    if isinstance(page.get(key), str)), None)  # fmt: skip
    yield Piece(
        where=where,
        engine=engine,
        role=role or (role_of(engine, settings) if engine else None),
        version=None
        if version is None
        else Setting(value=_build(version), origin=Origin.SAID, where=where),
        settings=settings,
        is_complete=engine is not None and len(page) > 1,
    )
    command = page.get("launch_command")
    if isinstance(command, str):
        yield from read_words(command.split(), where, environment={})


def _build(version: str) -> str:
    """Return llama.cpp's `b4882-abcdef` without its commit."""
    return version.partition("-")[0] if re.match(r"b\d+-", version) else version


def _measured(page: Mapping[str, Any]) -> dict[str, Any]:
    one_role = {key: value for key, value in page.items() if key != "roles"}
    roles = facts_of(ServerAnswers(server_info=one_role)).roles
    if not roles:
        return {}
    limit = roles[0].max_input_tokens
    return {
        "pool_tokens": roles[0].pool_tokens,
        "input_limit": None if limit is None else limit + 1,
    }


def _said(values: Mapping[str, Any], where: str) -> dict[str, Setting]:
    return {
        name: Setting(value=value, origin=Origin.SAID, where=where)
        for name, value in values.items()
        if value is not None
    }


def _engine(page: Mapping[str, Any]) -> str | None:
    said = page.get("engine")
    if isinstance(said, str):
        return said.lower()
    signs = (
        ("kvaudit-reference", page.get("server") == "kvaudit-reference"),
        ("vllm", "vllm_config" in page or "vllm_version" in page),
        ("llama.cpp", "build_info" in page or "default_generation_settings" in page),
        ("tgi", "docker_label" in page or "max_batch_total_tokens" in page),
        ("sglang", bool({"disaggregation_mode", "scheduler_info", "internal_states",
                         "mem_fraction_static", "disable_radix_cache", "max_total_num_tokens",
                         "max_total_tokens", "chunked_prefill_size"} & set(page))),
    )  # fmt: skip
    return next((engine for engine, is_it in signs if is_it), None)


_METRIC = re.compile(r"^(# (HELP|TYPE) )?(sglang|vllm|tgi|llamacpp)[:_]\w+", re.MULTILINE)


def looks_like_metrics(text: str) -> bool:
    """Return whether a text is a Prometheus page of an engine."""
    return _METRIC.search(text) is not None


def read_metrics(text: str, where: str) -> list[Piece]:
    """Return a piece for each role that a Prometheus page tells of."""
    samples = parse_metrics(text)
    is_vllm = any(sample.name.startswith("vllm:") for sample in samples)
    engine = "vllm" if is_vllm else "sglang" if "sglang:" in text else None
    facts = facts_of(ServerAnswers(
        models={"data": [{"id": "served", "owned_by": engine}]}, metrics=text
    ))  # fmt: skip
    pieces = []
    for role in facts.roles:
        settings = _said({
            "pool_tokens": role.pool_tokens, "page_size": role.page_size,
            "context_length": facts.context_tokens,
            "disaggregation_mode": _told_mode(engine, role.role, samples),
        } | _labels(samples), where)  # fmt: skip
        pieces.append(Piece(where=where, engine=engine, settings=settings,
                            role=None if role.role == "unified" else role.role))  # fmt: skip
    return pieces or [Piece(where=where, engine=engine)]


def _told_mode(engine: str | None, role: str, samples: tuple[Sample, ...]) -> str | None:
    """Return SGLang's mode if the metrics tell one; `unified` is what it calls `null`."""
    is_told = any(sample.labels.get("engine_type") == role for sample in samples)
    return {"unified": "null"}.get(role, role) if engine == "sglang" and is_told else None


def _labels(samples: tuple[Sample, ...]) -> dict[str, Any]:
    """Return vLLM's own configuration, which stands in the labels of one metric."""
    names = {"enable_prefix_caching": "enable_prefix_caching", "cache_dtype": "kv_cache_dtype",
             "prefix_caching_hash_algo": "prefix_caching_hash_algo",
             "num_gpu_blocks_override": "num_gpu_blocks_override"}  # fmt: skip
    for sample in samples:
        if sample.name.endswith("cache_config_info"):
            return {names[key]: scalar(value) for key, value in sample.labels.items()
                    if key in names}  # fmt: skip
    return {}


_LOG = re.compile(
    r"server_args=(ServerArgs\(|\{)|max_total_num_tokens=\d|[GC]PU KV cache size: |KV Cache is al"
    r"|non-default args: |vLLM API server version|Initializing an? (V1 )?LLM engine"
    r"|n_ctx_slot = |new slot, n_ctx|llama_context: n_ctx"
)


def looks_like_log(text: str) -> bool:
    """Return whether a text is the start-up log of an engine."""
    return _LOG.search(text) is not None


def read_log(text: str, where: str) -> list[Piece]:
    """Return what an engine's log says of its start; the last start counts."""
    engine = ("sglang" if re.search(r"server_args=|max_total_num_tokens=|KV Cache is alloc", text)
              else "vllm" if re.search(r"vLLM|GPU KV cache size|non-default args", text)
              else "llama.cpp")  # fmt: skip
    values: dict[str, Any] = {}
    arguments, is_whole = _arguments(text)
    values |= arguments
    for name, pattern in _NUMBERS:
        found = re.findall(pattern, text)
        if found:
            values[name] = int(str(found[-1]).replace(",", ""))
    settings = {
        option_name(engine, name): Setting(value=scalar(value), origin=Origin.SAID, where=where)
        for name, value in values.items()
    }
    version = re.search(
        r"(?:vLLM API server version|LLM engine \(v|sglang[ =]v?|build: )\s*v?"
        r"(\d[\w.+]*)", text,
    )  # fmt: skip
    is_version = version is not None and parse_version(version[1]) is not None
    if engine == "llama.cpp" and version is not None and version[1].isdecimal():
        is_version = True
    said = None if version is None or not is_version else Setting(
        value=f"b{version[1]}" if engine == "llama.cpp" else version[1],
        origin=Origin.SAID, where=where,
    )  # fmt: skip
    return [Piece(where=where, engine=engine, version=said, settings=opened(settings, where),
                  is_complete=is_whole,
                  role=role_of(engine, settings) if arguments else None)]  # fmt: skip


_NUMBERS = (
    ("pool_tokens", r"KV Cache is allocated\.[^\n]*#tokens: (\d+)"),
    ("pool_tokens", r"max_total_num_tokens=(\d+)"),
    ("pool_tokens", r"[GC]PU KV cache size: ([\d,]+) tokens"),
    ("context_length", r"max_total_num_tokens=\d+[^\n]*\bcontext_len=(\d+)"),
    ("context_length", r"max_seq_len=(\d+)"),
    ("slot_tokens", r"n_ctx_slot = (\d+)"),
    ("slot_tokens", r"new slot, n_ctx = (\d+)"),
    ("parallel", r"n_slots = (\d+)"),
)
_ARGUMENT = re.compile(
    r"(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|True|False|None|-?\d+(?:\.\d+)?)(?=[,)])"
)


def _arguments(text: str) -> tuple[dict[str, Any], bool]:
    """Return the arguments that a log repeats, and whether they are all there."""
    found = list(re.finditer(r"server_args=(\{.*\}|ServerArgs\(.*\))\s*$", text, re.MULTILINE))
    if found:
        body = found[-1][1]
        if body.startswith("{"):
            held = _literal(body)
            return {
                key: value
                for key, value in held.items()
                if value is None or isinstance(value, bool | int | float | str)
            }, bool(held)
        return {name: ast.literal_eval(value) for name, value in _ARGUMENT.findall(body)}, True
    line = re.search(r"non-default args: (\{.*\})\s*$", text, re.MULTILINE)
    if line is not None:
        held = _literal(line[1])
        return {
            key: value
            for key, value in held.items()
            if value is None or isinstance(value, bool | int | float | str)
        }, bool(held)
    return {}, False


def _literal(text: str) -> dict[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return {str(key): held for key, held in value.items()} if isinstance(value, dict) else {}

"""Images of containers: which engine is in one, and which version its tag says.

A tag is whatever its author likes. It is taken for the engine's version only if it can be one:
`nvcr.io/nvidia/vllm:25.09-py3` is a month and no vLLM 25.
"""

import re

from kvaudit.preflight.versions import Version, parse_version

# Part of an image's name -> engine; the first that fits counts.
_IMAGES = (
    ("sglang-router", "sglang-router"), ("sgl-model-gateway", "sglang-router"),
    ("sgl-router", "sglang-router"), ("lmcache", "lmcache"), ("mooncake", "mooncake"),
    ("litellm", "litellm"), ("sglang", "sglang"), ("sgl-dev", "sglang"), ("vllm", "vllm"),
    ("text-generation-inference", "tgi"), ("tensorrt-llm", "tensorrt-llm"),
    ("llama.cpp", "llama.cpp"), ("ollama", "ollama"), ("lmdeploy", "lmdeploy"),
    ("aibrix", "aibrix"),
)  # fmt: skip
# Names that say nothing themselves; the one before them does.
_GENERIC = frozenset({"release", "standalone", "server", "runtime", "devel"})
# What stands beside an engine and carries its name.
_BESIDE = re.compile(r"router|exporter|webui|-ui\b|operator|controller|proxy|dashboard|benchmark")
# The highest first number that the engine has had.
_FIRST_NUMBER_MAX = {
    "sglang": 0, "vllm": 0, "lmcache": 0, "mooncake": 0, "lmdeploy": 0, "ollama": 0, "aibrix": 0,
    "sglang-router": 0, "tensorrt-llm": 1, "litellm": 1, "tgi": 3,
}  # fmt: skip
_NAMED_VERSION = re.compile(r"(?:^|[_-])(?:vllm|sglang)[_-]?v?(\d+\.\d+(?:\.\d+)*(?:rc\d+)?)")


def engine_of_image(image: str) -> tuple[str | None, str | None]:
    """Return the engine and the version that an image's name and tag say; None for each unsaid."""
    path, tag = _split(image)
    engine = _engine(path)
    if engine is None or packed_with(image) is not None:
        return engine, None
    return engine, _version(engine, tag)


def packed_with(image: str) -> tuple[str, str | None] | None:
    """Return the store that an engine's image is published with, and its version.

    `lmcache/vllm-openai:v0.5.6` holds vLLM, and its tag is LMCache's version.
    """
    path, tag = _split(image)
    parts = path.split("/")
    is_packed = parts[-2:-1] == ["lmcache"] and _engine(path) not in (None, "lmcache")
    return ("lmcache", _version("lmcache", tag)) if is_packed else None


def tag_note(image: str) -> str | None:
    """Return why a tag that looks like a version is not taken for one; None if there is nothing."""
    path, tag = _split(image)
    engine = _engine(path)
    if engine is None or packed_with(image) is not None or _version(engine, tag) is not None:
        return None
    if parse_version(tag) is None:
        return None
    return f"the tag `{tag}` of `{path}` is no version that {engine} has had; it is not used"


def _split(image: str) -> tuple[str, str]:
    name, _, _ = image.partition("@")
    path, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        path, tag = name, ""
    return path.lower(), tag


def _engine(path: str) -> str | None:
    parts = path.split("/")
    name = parts[-2] if len(parts) > 1 and parts[-1] in _GENERIC else parts[-1]
    engine = next((engine for part, engine in _IMAGES if part in name), None)
    return None if engine != "sglang-router" and _BESIDE.search(name) else engine


def _version(engine: str, tag: str) -> str | None:
    named = _NAMED_VERSION.search(tag)
    candidates = [tag, *re.split(r"(?:server|light|full|cuda|rocm|main)[-_]", tag)]
    # `server-cuda-b4882`: the build is the last part.
    candidates += [tag.rsplit("-", 1)[-1]] if engine == "llama.cpp" else []
    candidates += [named[1]] if named is not None else []
    for held in candidates:
        version = parse_version(held) if held else None
        if version is not None and _may_be(engine, held, version):
            return held
    return None


def _may_be(engine: str, text: str, version: Version) -> bool:
    if engine == "llama.cpp":
        return re.match(r"[bB]\d", text) is not None
    return version.release[0] <= _FIRST_NUMBER_MAX.get(engine, version.release[0])

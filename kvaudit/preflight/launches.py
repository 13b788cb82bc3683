"""Command lines that start an engine: which engine, which version, which options."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvaudit.errors import ConfigError
from kvaudit.preflight.deployment import Origin, Piece, Scalar, Setting
from kvaudit.preflight.images import engine_of_image, packed_with
from kvaudit.preflight.options import SWITCHES, is_known, option_name
from kvaudit.preflight.versions import parse_version

# Words that start an engine; how many words, and whether a model may follow without a flag.
_STARTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"(\S*/)?sglang serve|-m sglang\.launch_server|\S*sglang/launch_server\.py"),
     "sglang"),
    (re.compile(r"-m (sglang_router\.launch_router|sglang\.launch_router)|(\S*/)?sglang-router"
                r"|-m sglang\.srt\.disaggregation\.(mini_lb|launch_lb)|(\S*/)?smg launch"),
     "sglang-router"),
    (re.compile(r"(\S*/)?vllm serve|-m vllm\.entrypoints\.(openai\.)?api_server"), "vllm"),
    (re.compile(r"(\S*/)?trtllm-serve( serve)?"), "tensorrt-llm"),
    (re.compile(r"(\S*/)?text-generation-launcher"), "tgi"),
    (re.compile(r"(\S*/)?llama-server"), "llama.cpp"),
    (re.compile(r"(\S*/)?ollama serve"), "ollama"),
    (re.compile(r"(\S*/)?lmdeploy serve api_server"), "lmdeploy"),
    (re.compile(r"(\S*/)?lmcache_server|(\S*/)?lmcache server|-m lmcache\S*"), "lmcache"),
    (re.compile(r"(\S*/)?mooncake_(master|http_metadata_server)"), "mooncake"),
    (re.compile(r"(\S*/)?litellm"), "litellm"),
)  # fmt: skip
_PACKAGE = re.compile(
    r"(?<![\w./-])(?P<name>sglang|vllm|tensorrt[-_]llm|lmdeploy|lmcache|litellm|redis"
    r"|mooncake-transfer-engine|llama\.cpp|ollama|text-generation-inference)"
    r"(?:\[[\w,. -]*\])?(?:\s*===?\s*|[ @]v?|[ ]version:?[ ])v?"
    r"(?P<version>b?\d[\w.+-]*)",
    re.IGNORECASE,
)
_PACKAGE_ENGINE = {
    "tensorrt_llm": "tensorrt-llm", "mooncake-transfer-engine": "mooncake",
    "text-generation-inference": "tgi", "redis": "redis-py",
}  # fmt: skip
_NAMED_FIRST = ("vllm", "tensorrt-llm", "lmdeploy")  # a model may stand before the flags
_STORES = {"lmcache": "store", "mooncake": "store", "litellm": "gateway", "aibrix": "gateway",
           "sglang-router": "gateway", "redis-py": "gateway"}  # fmt: skip
_VARIABLE = re.compile(
    r"\$\((?P<k8s>[A-Za-z_]\w*)\)|\$\{(?P<name>[A-Za-z_]\w*)(?::?-(?P<default>[^{}$]*))?\}"
    r"|\$(?P<bare>[A-Za-z_]\w*)"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_KEYWORDS = ("export", "exec", "local", "declare", "readonly", "then", "do", "else")
_DOCKER_SWITCH = re.compile(r"-[dit]+|--(rm|detach|interactive|tty|privileged|init|read-only)")
_SHELL = re.compile(r"(\S*/)?(ba|da|z|a|k)?sh")
# What may hold whole options and is not filled in: `$ARGS`, `"$@"`, `"${ARGS[@]}"`.
_OPEN_WORD = re.compile(r"\$(\(?[A-Za-z_]\w*\)?|[@*]|\{[^{}]*\})")
# Options that name a file with more options.
CONFIG_FLAGS = ("config", "extra_llm_api_options")
_ENV_PREFIXES = (
    "SGLANG_", "SGL_", "VLLM_", "LMCACHE_", "MOONCAKE_", "MC_", "LLAMA_ARG_", "OLLAMA_", "TRTLLM_",
    "LITELLM_", "PYTHONHASHSEED", "HF_MODEL_ID", "NIXL_",
)  # fmt: skip
_TGI_ENV = frozenset({
    "MODEL_ID", "MAX_INPUT_TOKENS", "MAX_INPUT_LENGTH", "MAX_TOTAL_TOKENS", "LORA_ADAPTERS",
    "MAX_BATCH_TOTAL_TOKENS", "MAX_BATCH_PREFILL_TOKENS", "PREFIX_CACHING", "USE_PREFIX_CACHING",
    "SPECULATE", "ATTENTION", "NUM_SHARD",
})  # fmt: skip


def read_launches(text: str, where: str) -> list[Piece]:
    """Return a piece for each command of a shell text that starts an engine."""
    packages = versions_said(text, where)
    environment: dict[str, str] = {}
    pieces: list[Piece] = []
    for words in _commands(text, where):
        if not _assigned(words, environment):
            pieces += read_words(words, where, environment=environment)
    used = {piece.engine for piece in pieces}
    made = [_with_package(piece, packages) if piece.version is None else piece for piece in pieces]
    return made + [
        component(engine, setting, where)
        for engine, setting in packages.items()
        if engine not in used and engine in _STORES and made
    ]


def component(engine: str, version: Setting | None, where: str) -> Piece:
    """Return a piece for software that is there beside an engine."""
    return Piece(where=where, engine=engine, role=_STORES.get(engine, "store"), version=version,
                 workload=engine)  # fmt: skip


def versions_said(text: str, where: str) -> dict[str, Setting]:
    """Return the versions that a text names, such as `sglang==0.5.19`, by engine."""
    said: dict[str, Setting] = {}
    for match in _PACKAGE.finditer(text):
        name = match["name"].lower()
        engine = _PACKAGE_ENGINE.get(name, name)
        version = match["version"].rstrip(".,;")
        if parse_version(version) is not None and engine not in said:
            said[engine] = Setting(value=version, origin=Origin.ARGUMENT, where=where)
    return said


def _with_package(piece: Piece, packages: Mapping[str, Setting]) -> Piece:
    return replace(piece, version=packages.get(piece.engine or ""))


def read_words(
    words: Sequence[str],
    where: str,
    *,
    environment: Mapping[str, str],
    engine: str | None = None,
    version: str | None = None,
    workload: str | None = None,
    tells_environment: bool = True,
) -> list[Piece]:
    """Return what one command says; empty if it starts no engine, several if it is a script.

    Args:
        words: The command, split.
        where: The source.
        environment: Variables that are set for it.
        engine: The engine of its image, whose entry point the words may be arguments of.
        version: The version of its image.
        workload: Name of the workload.
        tells_environment: Whether every variable is among them.
    """
    words = list(words)
    script = _script(words)
    if script is not None:
        return [
            replace(piece, tells_environment=tells_environment)
            for piece in _read_shell(script, where, environment, engine, version, workload)
        ]
    local = dict(environment)
    for word in words:
        if not _ASSIGNMENT.match(word):
            break
        local |= dict([word.split("=", 1)])
    found = started(words)
    image = _docker_image(words, local) if found is None or engine is None else None
    if found is None and image is not None:
        # The image's entry point is the engine; what follows its name are arguments.
        at, (engine, version) = words.index(image), engine_of_image(image)
        words = [image, *words[at + 1 :]]
        found = (1, engine) if engine is not None else None
    if found is None and engine is None:
        return []
    start, name = found if found is not None else (0, str(engine))
    version = version if name == engine else None
    if version is None and image is not None and engine_of_image(image)[0] == name:
        version = engine_of_image(image)[1]
    settings, notes = _settings(_expanded(words[start:], local), name, where)
    settings = environment_settings(local, name, where) | settings
    unset = _unset(words[start:], name, local)
    notes += [f"{where}: `{word}` holds a variable that no source sets" for word in unset]
    notes += [f"{where}: what is in `{settings[flag].value}` is not among the sources"
              for flag in CONFIG_FLAGS if flag in settings and name != "llama.cpp"]  # fmt: skip
    files = any(flag in settings for flag in CONFIG_FLAGS)
    is_started = found is not None or bool(words) or name in ("ollama", "tgi")
    # These take every option from variables too.
    is_told = tells_environment or name not in ("ollama", "tgi", "llama.cpp")
    return [Piece(
        where=where, engine=name, role=role_of(name, settings), workload=workload,
        version=None if version is None
        else Setting(value=version, origin=Origin.ARGUMENT, where=where),
        settings=settings,
        is_complete=not unset and is_started and is_told and not files,
        lacks_files_only=not unset and is_started and is_told and files,
        tells_environment=tells_environment,
        notes=tuple(notes),
    ), *_packed(image, where)]  # fmt: skip


def _packed(image: str | None, where: str) -> Iterator[Piece]:
    """Yield the store that a `docker run`'s image is published with."""
    packed = None if image is None else packed_with(image)
    if packed is not None:
        store, version = packed
        said = None if version is None else Setting(
            value=version, origin=Origin.ARGUMENT, where=where)  # fmt: skip
        yield component(store, said, where)


def _script(words: Sequence[str]) -> str | None:
    """Return the script that a command hands to a shell: `bash -c SCRIPT`, `ssh host SCRIPT`."""
    for at, word in enumerate(words[:-2]):
        flags = words[at + 1]
        if _SHELL.fullmatch(word) and re.fullmatch(r"-[a-z]*c[a-z]*", flags):
            rest = [held for held in words[at + 2 :] if held != "--"]
            return rest[0] if rest else None
    if started(words) is None:
        return next((word for word in words if len(word.split()) > 1 and started(word.split())),
                    None)  # fmt: skip
    return None


def _assigned(words: Sequence[str], environment: dict[str, str]) -> bool:
    """Take a line of assignments into the environment; returns whether it is one."""
    held = list(words)
    while held and held[0] in _KEYWORDS:
        held = held[1:]
    if not held or not all(_ASSIGNMENT.match(word) for word in held):
        return False
    for word in held:
        name, _, value = word.partition("=")
        if name.endswith("+"):
            name = name.removesuffix("+")
            value = environment.get(name, "") + value
        environment[name] = expanded(value, environment)
    return True


def _unset(words: Sequence[str], engine: str, environment: Mapping[str, str]) -> list[str]:
    """Return the words that no source fills in and that may hold whole options."""
    model = {0} if engine in _NAMED_FIRST else set()
    return [
        word
        for at, word in enumerate(words)
        if _OPEN_WORD.fullmatch(word)
        and expanded(word, environment) == word
        and at not in model
        and not (at > 0 and re.fullmatch(r"--?[A-Za-z][\w-]*", words[at - 1]))
    ]


def _read_shell(
    script: str, where: str, environment: Mapping[str, str], engine: str | None,
    version: str | None, workload: str | None,
) -> list[Piece]:  # fmt: skip
    local = dict(environment)
    packages = versions_said(script, where)
    pieces: list[Piece] = []
    for words in _commands(script, where):
        if _assigned(words, local) or (started(words) is None and _script(words) is None):
            continue
        pieces += read_words(words, where, environment=local, engine=engine, version=version,
                             workload=workload)  # fmt: skip
    return [_with_package(piece, packages) if piece.version is None else piece for piece in pieces]


def started(words: Sequence[str]) -> tuple[int, str] | None:
    """Return where the arguments of an engine begin, and which engine it is."""
    for at in range(len(words)):
        for width in (3, 2, 1):
            text = " ".join(words[at : at + width])
            for pattern, engine in _STARTS:
                if len(words[at : at + width]) == width and pattern.fullmatch(text):
                    return at + width, engine
    return None


def role_of(engine: str, settings: Mapping[str, Setting]) -> str:
    """Return the role that an engine's options give it."""
    if engine in _STORES:
        return _STORES[engine]
    mode = settings.get("disaggregation_mode")
    if mode is not None and mode.value in ("prefill", "decode"):
        return str(mode.value)
    kv_role = settings.get("kv_role")
    roles = {"kv_producer": "prefill", "kv_consumer": "decode"}
    return roles.get(str(kv_role.value), "unified") if kv_role is not None else "unified"


def environment_settings(
    environment: Mapping[str, str], engine: str, where: str
) -> dict[str, Setting]:
    """Return the variables that an engine reads, under the names of its options."""
    settings = {}
    for name, value in environment.items():
        if name.startswith(_ENV_PREFIXES) or (engine == "tgi" and name in _TGI_ENV):
            settings[option_name(engine, name.lower())] = Setting(
                value=scalar(value), origin=Origin.ENVIRONMENT, where=f"{where}, {name}"
            )
    return settings


# Engines that take units mean 1024 by a capital and 1000 by a small letter.
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30,
          "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}  # fmt: skip
_SIZE = re.compile(
    r"(?P<number>-?(?:\d{1,3}(?:[,_]\d{3})+|\d{1,15})(?:\.\d{1,9})?)(?P<unit>[kmgKMG]|[KMG]iB?|)"
)


def scalar(text: Any) -> Scalar:
    """Return a number, a truth value or the text itself; sizes may have a unit."""
    if not isinstance(text, str):
        return text if isinstance(text, bool | int | float) or text is None else json.dumps(text)
    lowered = text.strip().lower()
    if lowered in ("true", "yes", "on"):
        return True
    if lowered in ("false", "no", "off"):
        return False
    if lowered in ("none", "null"):
        return None
    match = _SIZE.fullmatch(text.strip())
    if match is not None:
        number = float(match["number"].replace(",", "").replace("_", ""))
        held = number * _UNITS[match["unit"].removesuffix("B")]
        if held.is_integer() and (match["unit"] or "." not in match["number"]):
            return int(held)
    try:
        return float(lowered) if re.fullmatch(r"-?\d*\.\d+", lowered) else text
    except ValueError:
        return text


def _settings(
    words: Sequence[str], engine: str, where: str
) -> tuple[dict[str, Setting], list[str]]:
    settings: dict[str, Setting] = {}
    notes: list[str] = []
    at = 0
    words = [part for word in words for part in _parts(word)]
    if words and not words[0].startswith("-") and engine in _NAMED_FIRST:
        settings["model_path"] = Setting(value=words[0], origin=Origin.ARGUMENT, where=where)
    while at < len(words):
        word = words[at]
        at += 1
        if not re.match(r"--?[A-Za-z]", word):
            continue
        flag, equals, value = word.partition("=")
        values = [value] if equals else []
        name = option_name(engine, flag)
        while not equals and at < len(words) and name not in SWITCHES \
                and not re.match(r"--?[A-Za-z]", words[at]):  # fmt: skip
            values.append(words[at])
            at += 1
        held: Scalar = scalar(values[0]) if len(values) == 1 else " ".join(values) or True
        if name.startswith("no_") and held is True:
            name, held = name.removeprefix("no_"), False
        settings[name] = Setting(value=held, origin=Origin.ARGUMENT, where=where)
        if not is_known(name):
            notes.append(f"{where}: `{flag}` is not known here; it is kept and decides nothing")
    return opened(settings, where), notes


def _parts(word: str) -> list[str]:
    """Return the words of `--flag value --other` that somebody wrote as one."""
    flag, _, value = word.partition(" ")
    if re.fullmatch(r"--?[A-Za-z][\w.-]*", flag) and value.strip():
        if value.strip()[0] in "{[":
            return [flag, value.strip()]
    elif not re.match(r"--?[A-Za-z][\w.-]*=[^\s{\[\"']+\s+--", word):
        return [word]
    try:
        return shlex.split(word)
    except ValueError:
        return word.split()


def opened(settings: dict[str, Setting], where: str) -> dict[str, Setting]:
    """Return the settings with those that are JSON opened: connector and role of a transfer."""
    held = settings.get("kv_transfer_config")
    if held is None or not isinstance(held.value, str):
        return settings
    try:
        config = json.loads(held.value)
    except ValueError:
        raise ConfigError(
            f"`kv_transfer_config` in {where} is no JSON", hint="quote it as one word"
        ) from None
    names = {"kv_connector": "kv_connector", "kv_role": "kv_role",
             "kv_load_failure_policy": "kv_load_failure_policy"}  # fmt: skip
    inner = config if isinstance(config, dict) else {}
    return settings | {
        name: Setting(value=scalar(inner[key]), origin=held.origin, where=where)
        for key, name in names.items()
        if key in inner
    }


def _docker_image(words: Sequence[str], local: dict[str, str]) -> str | None:
    """Return the image of a `docker run`, and take its `-e NAME=VALUE` into the environment."""
    if not {"docker", "podman", "nerdctl"} & set(words):
        return None
    for at, word in enumerate(words):
        if word in ("-e", "--env") and at + 1 < len(words) and "=" in words[at + 1]:
            local |= dict([words[at + 1].split("=", 1)])
        elif word.startswith("--env="):
            local |= dict([word.removeprefix("--env=").split("=", 1)])
    # The first word after `run` that is neither an option nor the value of one.
    at = words.index("run") + 1 if "run" in words else len(words)
    while at < len(words) and words[at].startswith("-"):
        has_value = "=" not in words[at] and not _DOCKER_SWITCH.fullmatch(words[at])
        at += 2 if has_value else 1
    return words[at] if at < len(words) and engine_of_image(words[at])[0] else None


def _expanded(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    words_out: list[str] = []
    for word in words:
        text = expanded(word, environment)
        # In a shell a variable that stands alone may hold several words; in a manifest it may not.
        match = _VARIABLE.fullmatch(word)
        is_split = match is not None and match["k8s"] is None and text[:1] not in ("{", "[")
        words_out += text.split() if is_split else [text]
    return words_out


def expanded(word: str, environment: Mapping[str, str]) -> str:
    """Return a word with its variables filled in, where a source sets them."""

    def found(match: re.Match[str]) -> str:
        name = match["k8s"] or match["name"] or match["bare"]
        default = match["default"]
        return environment.get(name) or (match[0] if default is None else default)

    return _VARIABLE.sub(found, word)


def _commands(text: str, where: str) -> Iterator[list[str]]:
    joined = re.sub(r"\\\r?\n", " ", text)
    for line in joined.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        try:
            for word in lexer:
                if word and set(word) <= set("&;|"):
                    yield _without_redirects(words)
                    words = []
                else:
                    words.append(word)
        except ValueError as error:
            if started(line.split()) is not None:
                raise ConfigError(
                    f"a command in `{where}` can't be split: {error}", hint="close its quotes"
                ) from None
            continue
        yield _without_redirects(words)


def _without_redirects(words: Sequence[str]) -> list[str]:
    """Return a command without `> FILE`, `2>FILE` and `< FILE`."""
    kept: list[str] = []
    is_target = False
    for word in words:
        is_mark = re.fullmatch(r"\d?>>?|<", word) is not None
        if not is_mark and not is_target and re.fullmatch(r"\d?>>?[^>]+", word) is None:
            kept.append(word)
        is_target = is_mark
    return kept

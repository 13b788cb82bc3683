"""PagedModel: a Hugging Face decoder that keeps its keys and values in our page pool."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from engine.adapters import Adapter, RowsOf, adapted, assignment, install, random_adapters
from engine.attention import (
    ATTENTION_NAME,
    SequenceStep,
    ShapeProbe,
    WholePlan,
    plan_step,
    planned,
    register,
)
from engine.cache import KVCache
from engine.config import check_model
from engine.copier import build_copier, copier_adapter
from engine.copier_tokenizer import CopierCodec
from engine.model_folders import FETCHABLE, kept_folder
from engine.selftest import PAGE_SIZE, check_against_own_forward, pages_needed, pool_shape
from engine.text_codec import FolderCodec, TextCodec
from kvaudit.errors import EngineError

__all__ = ["PagedModel", "SequenceStep", "build_model"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROBE_TOKENS = (1, 2, 3, 4)
# What model code raises when it meets an attention that it was not written for.
MODEL_FAILURES = (
    AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class PagedModel:
    """A decoder over pages: `step` runs chunks of prefill and decodes together, in one forward.

    A request's logits depend on its company only by rounding, about 1e-5 in float32. With
    `deterministic`, sequences run one by one and do not depend on it at all, as long as the
    scheduler cuts a prompt into the same chunks whoever else is there.

    Attributes:
        name: As given to `build_model`.
        num_layers: Layers of the pool: attention layers of the model.
        num_kv_heads: KV heads of the pool.
        head_dim: Numbers stored for each key; a narrower value leaves the rest unused.
        vocab_size: Width of the logits.
        max_positions: Positions that the model is made for.
        eos_token_ids: Any of these ends an answer.
        adapters: Names accepted in `SequenceStep.adapter`.
        deterministic: Run sequences one by one.
    """

    def __init__(
        self,
        *,
        name: str,
        network: Any,
        codec: TextCodec,
        eos_token_ids: frozenset[int],
        adapters: Sequence[Adapter] = (),
        deterministic: bool = False,
    ) -> None:
        self.name = name
        self.network = network
        self.codec = codec
        self.eos_token_ids = eos_token_ids
        self.deterministic = deterministic
        self.adapters: tuple[str, ...] = tuple(adapter.name for adapter in adapters)
        install(network, adapters)
        self._own_attention: str = network.config._attn_implementation
        if self._own_attention == ATTENTION_NAME:  # a second PagedModel over the same network
            self._own_attention = "eager"
        self._page_attention()
        config = network.config.get_text_config(decoder=True)
        self.max_positions: int = config.max_position_embeddings
        probe = ShapeProbe()
        self.vocab_size: int = self._probed(probe)
        shape = pool_shape(probe.calls, num_layers=config.num_hidden_layers, name=name)
        self.num_layers, self.num_kv_heads, self.head_dim = shape

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.network.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """What the weights, keys and values are."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt."""
        return self.codec.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of some tokens, without control tokens."""
        return self.codec.decode(token_ids)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids of a chat, ready for the answer."""
        return self.codec.encode_chat(messages)

    def new_cache(
        self, num_pages: int, page_size: int, device: torch.device | str | None = None
    ) -> KVCache:
        """Return an empty pool that fits this model, on its device unless told otherwise."""
        return KVCache(
            num_pages=num_pages,
            num_layers=self.num_layers,
            page_size=page_size,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            device=torch.device(device) if device is not None else self.device,
            dtype=self.dtype,
        )

    @torch.inference_mode()
    def step(self, cache: KVCache, steps: Sequence[SequenceStep]) -> Tensor:
        """Feed every sequence its new tokens.

        Args:
            cache: The pool that all page tables point into.
            steps: One for each sequence; writes happen before anything is read.

        Returns:
            Logits after the last token of each sequence that wants them, in order; float32
            [wanted, vocab_size] on the model's device.
        """
        if not steps:
            return torch.empty(0, self.vocab_size, device=self.device)
        if not self.deterministic:
            return self._forward(cache, steps)
        return torch.cat([self._forward(cache, (step,)) for step in steps])

    def _forward(self, cache: KVCache, steps: Sequence[SequenceStep]) -> Tensor:
        tokens = [token for step in steps for token in step.tokens]
        positions = [
            position
            for step in steps
            for position in range(step.first_position, step.first_position + len(step.tokens))
        ]
        for step in steps:
            assert step.adapter is None or step.adapter in self.adapters, "no such adapter"
        with planned(plan_step(cache, steps)), adapted(assignment(steps, self.device)):
            return self._logits(tokens, positions, _wanted_rows(steps))

    def _logits(self, tokens: list[int], positions: list[int], rows: list[int]) -> Tensor:
        """Run the network over one flat row of tokens; return float32 [rows, vocab_size]."""
        device = self.device
        input_ids = torch.tensor([tokens], device=device)
        kept = torch.tensor(rows or [0], device=device)
        output = self.network(
            input_ids=input_ids,
            position_ids=torch.tensor([positions], device=device),
            # Without a mask, jumps in the positions would be taken for packed sequences.
            attention_mask=torch.ones_like(input_ids),
            use_cache=False,
            logits_to_keep=kept,
        )
        logits: Tensor = output.logits[0].float()
        return logits[: len(rows)]

    @torch.inference_mode()
    def replay_logprobs(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        *,
        adapter: str | None = None,
    ) -> list[float]:
        """Recompute the log-probability of each output token, in one piece and with no pool.

        Args:
            prompt_ids: The prompt really sent; at least one token.
            output_ids: The tokens that were emitted after it.
            adapter: The adapter that the request asked for.

        Returns:
            Raw log-probabilities, before temperature, in nat.
        """
        assert prompt_ids, "nothing to condition on"
        if not output_ids:
            return []
        tokens = [*prompt_ids, *output_ids]
        first = len(prompt_ids) - 1
        assert adapter is None or adapter in self.adapters, "no such adapter"
        all_rows = torch.arange(len(tokens) - 1, device=self.device)
        rows = () if adapter is None else (RowsOf(adapter, all_rows),)
        with planned(WholePlan()), adapted(rows):
            logits = self._logits(
                tokens[:-1], list(range(len(tokens) - 1)), list(range(first, len(tokens) - 1))
            )
        wanted = torch.tensor(output_ids, device=logits.device)
        replayed: list[float] = (
            torch.log_softmax(logits, dim=-1).gather(1, wanted[:, None]).squeeze(1).tolist()
        )
        return replayed

    @torch.inference_mode()
    def self_test(self) -> None:
        """Compare one mixed, chunked run over pages with the model's own forward.

        Raises:
            EngineError: They differ, or the model does not run; with the reason.
        """
        cache = self.new_cache(pages_needed(), PAGE_SIZE)
        try:
            check_against_own_forward(
                name=self.name,
                vocab_size=self.vocab_size,
                cache=cache,
                step=self.step,
                own_forward=self._own_logits,
            )
        except MODEL_FAILURES as error:
            raise self._does_not_run(error) from error

    def _own_logits(self, tokens: list[int]) -> Tensor:
        """Run the network as transformers would, with the attention it was loaded with.

        Swaps the attention of the network for a moment, so only for start-up.
        """
        self.network.set_attn_implementation(self._own_attention)
        try:
            input_ids = torch.tensor([tokens], device=self.device)
            logits: Tensor = self.network(input_ids=input_ids, use_cache=False).logits[0]
        finally:
            self.network.set_attn_implementation(ATTENTION_NAME)
        return logits

    @torch.inference_mode()
    def _probed(self, probe: ShapeProbe) -> int:
        """Let the network call attention once over; return the width of its logits."""
        try:
            with planned(probe):
                logits = self._logits(list(PROBE_TOKENS), list(range(len(PROBE_TOKENS))), [0])
        except MODEL_FAILURES as error:
            raise self._does_not_run(error) from error
        return int(logits.shape[-1])

    def _does_not_run(self, error: Exception) -> EngineError:
        kind = type(self.network).__name__
        return EngineError(
            f"`{self.name}` ({kind}) does not run over this engine's attention:"
            f" {type(error).__name__}: {error}",
            hint="choose a model such as Llama, Qwen, Mistral, Gemma or OLMo",
        )

    def _page_attention(self) -> None:
        """Put our attention in place, or refuse a model that never asks for it."""
        register()
        try:
            self.network.set_attn_implementation(ATTENTION_NAME)
        except (ValueError, KeyError) as error:
            raise EngineError(f"`{self.name}` refuses another attention: {error}") from error
        if self.network.config._attn_implementation != ATTENTION_NAME:
            kind = type(self.network).__name__
            raise EngineError(
                f"`{self.name}` ({kind}) computes its attention itself, past transformers'"
                " attention interface, so its keys and values cannot be kept in pages",
                hint="choose a model such as Llama, Qwen, Mistral, Gemma or OLMo",
            )


def build_model(
    name_or_path: str,
    device: str = "auto",
    dtype: str = "float32",
    *,
    deterministic: bool = False,
) -> PagedModel:
    """Load a built-in model or a local Hugging Face folder; nothing is ever downloaded.

    Args:
        name_or_path: `copier`, `smollm2` once it has been fetched, or a folder with
            `config.json`, safetensors and a tokenizer.
        device: `auto` (CUDA where it is), `cpu`, `cuda`, `cuda:1`.
        dtype: `float32`, `bfloat16`, `float16`; `auto` = what the weights are stored in.
        deterministic: See `PagedModel`.

    Raises:
        EngineError: The model cannot be loaded, or does not fit this engine.
    """
    where = _device(device)
    if name_or_path == "copier":
        model = _copier(where, dtype, deterministic=deterministic)
    else:
        model = _from_folder(name_or_path, where, dtype, deterministic=deterministic)
    model.self_test()
    return model


def _copier(device: torch.device, dtype: str, *, deterministic: bool) -> PagedModel:
    if device.type == "cpu":
        # Its matrices are so small that a second thread only waits: 4 times the CPU time on a busy
        # machine of two cores.
        torch.set_num_threads(1)
    codec = CopierCodec()
    network: Any = build_copier(
        eos_token_id=codec.eos_token_id,
        bos_token_id=codec.bos_token_id,
        newline_token_id=codec.newline_token_id,
        opening_token_id=codec.opening_token_id,
    )
    network.to(device=device, dtype=DTYPES.get(dtype, torch.float32))
    return PagedModel(
        name="copier",
        network=network,
        codec=codec,
        eos_token_ids=frozenset({codec.eos_token_id}),
        adapters=[
            copier_adapter(
                f"copier:{letter}",
                full_stop_id=codec.token_id("."),
                printed_id=codec.token_id(mark),
                seed=seed,
            )
            for seed, (letter, mark) in enumerate((("a", "!"), ("b", "?")), start=1)
        ],
        deterministic=deterministic,
    )


def _from_folder(
    name_or_path: str, device: torch.device, dtype: str, *, deterministic: bool
) -> PagedModel:
    # A fetched model is a folder as any other, but goes by its name.
    check_model(name_or_path)
    is_fetched = name_or_path in FETCHABLE
    folder = kept_folder(name_or_path) if is_fetched else Path(name_or_path)
    network = _load_folder(folder, device, dtype)
    codec = FolderCodec(folder)
    adapter_names = [f"{name_or_path}:{letter}" for letter in "ab"] if is_fetched else []
    return PagedModel(
        name=name_or_path,
        network=network,
        codec=codec,
        eos_token_ids=_eos_token_ids(network, codec.eos_token_id),
        adapters=random_adapters(network, adapter_names),
        deterministic=deterministic,
    )


def _load_folder(folder: Path, device: torch.device, dtype: str) -> Any:
    """Load weights from safetensors only: no pickle, no code out of the folder."""
    disable_progress_bar()  # type: ignore[no-untyped-call]  # stderr belongs to the command
    try:
        config = AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        network: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            dtype=DTYPES.get(dtype, "auto"),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise EngineError(
            f"the model in `{folder}` cannot be loaded: {error}",
            hint="a folder of a causal language model with `config.json` and safetensors",
        ) from error
    return network.to(device).requires_grad_(False).train(mode=False)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise EngineError(f"there is no device `{name}` here", hint="use `--device cpu`")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise EngineError(f"there is no device `{name}`") from error


def _eos_token_ids(network: Any, of_tokenizer: int | None) -> frozenset[int]:
    """Collect every end token that the folder names."""
    found: set[int] = set()
    for source in (getattr(network, "generation_config", None), network.config):
        value = getattr(source, "eos_token_id", None)
        found.update([value] if isinstance(value, int) else value or [])
    if of_tokenizer is not None:
        found.add(of_tokenizer)
    return frozenset(found)


def _wanted_rows(steps: Sequence[SequenceStep]) -> list[int]:
    """Return the flat row of the last token of each sequence that wants logits."""
    rows, end = [], 0
    for step in steps:
        end += len(step.tokens)
        if step.wants_logits:
            rows.append(end - 1)
    return rows

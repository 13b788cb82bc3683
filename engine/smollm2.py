"""SmolLM2-135M-Instruct out of a GGUF file, as an ordinary Hugging Face folder.

The only published file that a package index carries is quantised (Q4_1, embedding Q8_0), so the
weights are the dequantised ones, in float32 and bit for bit what `gguf` computes from the file.
Three things differ between the two formats:

* llama.cpp keeps the rows of the query and key projections interleaved, Hugging Face in halves.
* The tokenizer's splitting rule is named, not written: `smollm` takes digits one by one.
* Input embedding and output head are one tensor.

No torch in here: a machine that only fetches does not need it.
"""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from kvaudit.errors import EngineError

CONTROL_TOKEN_TYPE = 3  # `tokenizer.ggml.token_type` of <|im_start|> and its like
PRE_TOKENIZER = "smollm"
WEIGHTS_FILE = "model.safetensors"

# Names of GGUF's tensors in a block, and of Hugging Face's in a layer.
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def write_model_folder(gguf: Path, folder: Path) -> None:
    """Write weights, configuration and tokenizer of a SmolLM2 GGUF file into a new folder.

    Raises:
        EngineError: The file is no GGUF, or of another kind than SmolLM2.
        OSError: The folder can't be written.
    """
    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise EngineError(
            f"`{gguf.name}` can't be read as a GGUF file: {error}", hint="fetch it again"
        ) from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    _check_kind(fields, gguf)
    folder.mkdir(parents=True)
    config = _config(fields)
    weights = _weights(reader, config)
    _save(weights, folder / WEIGHTS_FILE)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    )
    (folder / "tokenizer.json").write_text(_tokenizer(fields).to_str(pretty=True), "utf-8")
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))


def _save(weights: dict[str, NDArray[np.float32]], path: Path) -> None:
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it hides the system's own error behind one of its kind
        told = str(error)
        code = errno.ENOSPC if os.strerror(errno.ENOSPC) in told else errno.EIO
        raise OSError(code, told) from error


def _check_kind(fields: Mapping[str, Any], gguf: Path) -> None:
    wanted = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE_TOKENIZER,
    }
    for name, value in wanted.items():
        if fields.get(name) != value:
            raise EngineError(
                f"`{gguf.name}` is no SmolLM2: `{name}` is {fields.get(name)!r}, not {value!r}",
                hint="other models come as a Hugging Face folder: `--model PATH`",
            )


def _config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config.json`; the RoPE base in both places where readers look for it."""
    heads = int(fields["llama.attention.head_count"])
    theta = float(fields["llama.rope.freq_base"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": int(fields["llama.vocab_size"]),
        "hidden_size": int(fields["llama.embedding_length"]),
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": int(fields["llama.embedding_length"]) // heads,
        "max_position_embeddings": int(fields["llama.context_length"]),
        # GGUF holds it as float32; the short form is what was meant.
        "rms_norm_eps": float(np.format_float_scientific(
            np.float32(fields["llama.attention.layer_norm_rms_epsilon"])
        )),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        "dtype": "float32",
    }  # fmt: skip


def _weights(reader: Any, config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return every tensor by its Hugging Face name, float32 [rows, columns] or [width]."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, NDArray[np.float32]] = {}
    for tensor in reader.tensors:
        stem, _, kind = str(tensor.name).rpartition(".")
        own = stem.rpartition(".")[2]
        name = _hugging_face_name(stem)
        if name is None or kind != "weight":
            raise EngineError(f"the GGUF file holds a tensor `{tensor.name}`, unknown in SmolLM2")
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if own in heads:
            values = halves_from_pairs(values, heads[own])
        weights[f"{name}.weight"] = np.ascontiguousarray(values)
    expected = len(_OUTSIDE) + len(_IN_LAYER) * config["num_hidden_layers"]
    if len(weights) != expected:
        raise EngineError(f"the GGUF file holds {len(weights)} tensors, SmolLM2 has {expected}")
    return weights


def _hugging_face_name(stem: str) -> str | None:
    if stem in _OUTSIDE:
        return _OUTSIDE[stem]
    block, _, own = stem.partition(".")[2].partition(".")
    if stem.startswith("blk.") and block.isdecimal() and own in _IN_LAYER:
        return f"model.layers.{block}.{_IN_LAYER[own]}"
    return None


def halves_from_pairs(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of each head: (0, 0', 1, 1', ...) becomes (0, 1, ..., 0', 1', ...).

    llama.cpp rotates neighbouring rows together, Hugging Face row i with row i + head_dim / 2.

    Shapes: rows (heads * head_dim, hidden), and so is what is returned.
    """
    by_head = rows.reshape(heads, rows.shape[0] // heads // 2, 2, rows.shape[1])
    return by_head.swapaxes(1, 2).reshape(rows.shape)


def _tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    pieces = [str(piece) for piece in fields["tokenizer.ggml.tokens"]]
    kinds = fields["tokenizer.ggml.token_type"]
    halves = (str(merge).split(" ") for merge in fields["tokenizer.ggml.merges"])
    merges = [(left, right) for left, right in halves]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        piece for piece, kind in zip(pieces, kinds, strict=True) if kind == CONTROL_TOKEN_TYPE
    ]
    tokenizer.add_special_tokens(
        [AddedToken(piece, special=True, normalized=False) for piece in control]
    )
    return tokenizer


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    pieces = fields["tokenizer.ggml.tokens"]
    of_id = {
        "bos_token": "tokenizer.ggml.bos_token_id",
        "eos_token": "tokenizer.ggml.eos_token_id",
        "unk_token": "tokenizer.ggml.unknown_token_id",
        "pad_token": "tokenizer.ggml.padding_token_id",
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: str(pieces[int(fields[field])]) for name, field in of_id.items()},
        "chat_template": str(fields["tokenizer.chat_template"]),
        "model_max_length": int(fields["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": False,
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")

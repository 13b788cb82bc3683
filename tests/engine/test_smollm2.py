"""SmolLM2 out of a GGUF file: the same weights, the same tokens, the same logits."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from safetensors.numpy import load_file

from engine.attention import SequenceStep
from engine.model import build_model
from engine.model_folders import FETCHABLE, MANIFEST
from engine.smollm2 import WEIGHTS_FILE, halves_from_pairs, write_model_folder
from kvaudit.errors import EngineError

TINY = Path(__file__).with_name("tiny_gguf.py")
SMOLLM2 = FETCHABLE["smollm2"]


@pytest.fixture(scope="module")
def tiny():
    spec = importlib.util.spec_from_file_location("tiny_gguf", TINY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gguf(tiny, tmp_path_factory):
    return tiny.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def folder(gguf, tmp_path_factory):
    made = tmp_path_factory.mktemp("models") / "tiny"
    write_model_folder(gguf, made)
    return made


@pytest.fixture(scope="module")
def model(folder):
    torch.set_num_threads(1)
    return build_model(str(folder), "cpu")


def dequantised(gguf):
    return {str(held.name): dequantize(held.data, held.tensor_type)
            for held in GGUFReader(gguf).tensors}  # fmt: skip


def logits_as_llama_cpp_has_them(tiny, gguf, ids):
    """A forward written for GGUF's own order: neighbouring rows of q and k rotate together."""
    w = {name: torch.tensor(np.array(held)) for name, held in dequantised(gguf).items()}
    hidden = w["token_embd.weight"][torch.tensor(ids)]
    half = torch.arange(tiny.HEAD_DIM // 2)
    angles = torch.outer(torch.arange(len(ids)), tiny.THETA ** (-2.0 * half / tiny.HEAD_DIM))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]

    def normed(x, name):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w[name]

    def rotated(x):
        pairs = torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(-2)

    for block in range(tiny.LAYERS):

        def part(name, x, block=block):
            return x @ w[f"blk.{block}.{name}.weight"].T

        x = normed(hidden, f"blk.{block}.attn_norm.weight")
        q = rotated(part("attn_q", x).view(len(ids), tiny.HEADS, tiny.HEAD_DIM))
        k = rotated(part("attn_k", x).view(len(ids), tiny.KV_HEADS, tiny.HEAD_DIM))
        v = part("attn_v", x).view(len(ids), tiny.KV_HEADS, tiny.HEAD_DIM)
        shared = tiny.HEADS // tiny.KV_HEADS
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / tiny.HEAD_DIM**0.5
        later = torch.ones(len(ids), len(ids)).triu(1).bool()
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -1e30).softmax(-1), v)
        hidden = hidden + part("attn_output", mixed.flatten(1))
        x = normed(hidden, f"blk.{block}.ffn_norm.weight")
        gate = torch.nn.functional.silu(part("ffn_gate", x)) * part("ffn_up", x)
        hidden = hidden + part("ffn_down", gate)
    return normed(hidden, "output_norm.weight") @ w["token_embd.weight"].T


def test_the_logits_are_those_of_the_gguf_file(tiny, gguf, model):
    ids = [5, 80, 33, 200, 7, 19, 100, 61, 3, 44, 90]
    cache = model.new_cache(4, 16)
    step = SequenceStep(
        tokens=tuple(ids), first_position=0, page_table=(2, 0), kv_len=len(ids), wants_logits=True
    )
    wanted = logits_as_llama_cpp_has_them(tiny, gguf, ids)[-1]
    assert wanted.std() > 0.1
    torch.testing.assert_close(model.step(cache, [step])[0], wanted, rtol=1e-4, atol=1e-4)


def test_every_weight_is_bit_for_bit_the_dequantised_one(tiny, gguf, folder):
    kept, told = load_file(folder / WEIGHTS_FILE), dequantised(gguf)
    assert len(kept) == len(told)
    pairs = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    }
    for name, source in pairs.items():
        assert kept[name].dtype == np.float32
        np.testing.assert_array_equal(kept[name], told[source])
    query = kept["model.layers.1.self_attn.q_proj.weight"]
    source = told["blk.1.attn_q.weight"]
    assert sorted(map(bytes, query)) == sorted(map(bytes, source))
    np.testing.assert_array_equal(query, halves_from_pairs(source, tiny.HEADS))


def test_neighbouring_rows_of_a_head_become_its_two_halves():
    rows = np.arange(12, dtype=np.float32)[:, None]
    assert halves_from_pairs(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_digits_stand_alone_and_control_tokens_are_whole(tiny, model):
    piece = tiny.PIECES.index
    assert model.encode("12") == [piece("1"), piece("2")]  # though a merge would join them
    assert model.encode(" the") == [piece("Ġthe")]
    assert model.encode("<|im_start|>a") == [1, piece("a")]
    assert model.decode([1, piece("Ġthe"), piece("1"), 2]) == " the1"
    for text in ("  3 \n\n 4é, ok", "a\tb  12"):
        assert model.decode(model.encode(text)) == text


def test_the_chat_template_is_the_files_own(model):
    ids = model.encode_chat([{"role": "user", "content": "a"}])
    assert ids == model.encode("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n")
    assert model.eos_token_ids == {2}


def test_sizes_and_rope_stand_in_the_configuration(tiny, folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == tiny.THETA
    assert config["rms_norm_eps"] == 1e-5
    assert (config["head_dim"], config["num_key_value_heads"]) == (tiny.HEAD_DIM, tiny.KV_HEADS)


def test_another_kind_of_file_is_refused(tiny, tmp_path):
    gguf = tiny.write_gguf(tmp_path / "other.gguf", pre="llama-bpe")
    with pytest.raises(EngineError, match=r"is no SmolLM2: `tokenizer\.ggml\.pre` is 'llama-bpe'"):
        write_model_folder(gguf, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_an_unknown_tensor_is_refused(tiny, tmp_path):
    gguf = tiny.write_gguf(tmp_path / "other.gguf", extra_tensor=True)
    with pytest.raises(EngineError, match=r"rope_freqs\.weight"):
        write_model_folder(gguf, tmp_path / "made")


def test_what_is_no_gguf_file_is_refused(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUX" + b"\0" * 100)
    with pytest.raises(EngineError, match=r"`x\.gguf` can't be read as a GGUF file"):
        write_model_folder(tmp_path / "x.gguf", tmp_path / "made")


# --- the real one, where it has been fetched

fetched = pytest.mark.skipif(
    not (SMOLLM2.folder / MANIFEST).is_file(), reason="needs `kvaudit model fetch smollm2`"
)


@pytest.fixture(scope="module")
def smollm2():
    torch.set_num_threads(1)
    return build_model("smollm2", "cpu")


@pytest.mark.slow
@fetched
def test_smollm2_has_the_tokens_that_other_engines_report(smollm2):
    code = [16722, 50, 7055, 29, 39, 39, 35, 33, 29, 11745, 10642, 74]  # vLLM 0.32, /tokenize
    assert smollm2.encode("ZEBRA-7731-QUARTZ") == code
    assert smollm2.encode_chat([{"role": "user", "content": "Hi"}])[:3] == [1, 9690, 198]
    assert smollm2.eos_token_ids == {2}


@pytest.mark.slow
@fetched
def test_smollm2_answers_in_plain_english(smollm2):
    ids = smollm2.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    cache, answer = smollm2.new_cache(8, 16), []
    tokens, position = ids, 0
    while len(answer) < 12:
        step = SequenceStep(
            tokens=tuple(tokens), first_position=position, page_table=tuple(range(8)),
            kv_len=position + len(tokens), wants_logits=True,
        )  # fmt: skip
        position += len(tokens)
        tokens = [int(smollm2.step(cache, [step])[0].argmax())]
        if tokens[0] in smollm2.eos_token_ids:
            break
        answer += tokens
    assert smollm2.decode(answer) == "The capital of France is Paris."

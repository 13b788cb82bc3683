import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.attention import SequenceStep
from engine.model import build_model
from kvaudit.errors import EngineError, UnknownNameError

PAGE = 16


@pytest.fixture(scope="module")
def copier():
    torch.set_num_threads(1)
    return build_model("copier", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Llama with a word tokenizer, as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("tiny-llama")
    words = ["<pad>", "<s>", "</s>", "the", "code", "is", "red", "blue", "user", "assistant"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=(
            "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
            "{% if add_generation_prompt %}assistant{% endif %}"
        ),
    ).save_pretrained(path)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=2, initializer_range=0.5,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(1)  # noqa: TID251 - transformers draws weights from the global state
        LlamaForCausalLM(config).save_pretrained(path)
    return path


def recorded_logprobs(model, prompt, output):
    """Log-probabilities of `output` as an engine records them: one chunk, then decodes."""
    cache = model.new_cache(64, PAGE)
    table = tuple(range(63, -1, -1))
    chunks = [(0, prompt), *((len(prompt) + i, [token]) for i, token in enumerate(output[:-1]))]
    recorded = []
    for (first, tokens), wanted in zip(chunks, output, strict=True):
        step = SequenceStep(
            tokens=tuple(tokens),
            first_position=first,
            page_table=table,
            kv_len=first + len(tokens),
            wants_logits=True,
        )
        recorded.append(float(torch.log_softmax(model.step(cache, [step])[0], -1)[wanted]))
    return recorded


def test_replay_gives_the_recorded_log_probabilities(copier):
    line = "The code of the red house is seven and nine."
    prompt = copier.encode(f"{line}\nThe code of")
    output = copier.encode(" the red house is six and ten")[1:]
    recorded = recorded_logprobs(copier, prompt, output)
    assert min(recorded) < -5.0, "no surprising token, too weak a test"
    assert copier.replay_logprobs(prompt, output) == pytest.approx(recorded, abs=1e-4)


def test_replay_under_another_prompt_differs(copier):
    output = copier.encode(" seven")[1:]
    right = copier.replay_logprobs(copier.encode("The code is seven.\nThe code is"), output)
    wrong = copier.replay_logprobs(copier.encode("The code is eight.\nThe code is"), output)
    assert right[0] > -0.01
    assert wrong[0] < -5.0


def test_replay_of_nothing_is_empty(copier):
    assert copier.replay_logprobs([1, 2], []) == []


def test_a_local_folder_runs_with_its_own_tokenizer_and_ends(folder):
    model = build_model(str(folder), "cpu")
    assert model.eos_token_ids == {2}
    assert (model.num_layers, model.num_kv_heads, model.head_dim) == (2, 1, 8)
    assert (model.vocab_size, model.max_positions) == (10, 64)
    assert model.decode(model.encode("the code is red")) == "the code is red"
    assert model.decode([*model.encode("red"), 2]) == "red"
    chat = model.encode_chat([{"role": "user", "content": "the code"}])
    assert model.decode(chat) == "user the code assistant"


def test_a_local_folder_answers_as_transformers_does(folder):
    model = build_model(str(folder), "cpu")
    prompt = model.encode("the code is red the code is")
    own = LlamaForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits = own(torch.tensor([prompt])).logits[0, -1]
    step = SequenceStep(
        tokens=tuple(prompt),
        first_position=0,
        page_table=(2,),
        kv_len=len(prompt),
        wants_logits=True,
    )
    ours = model.step(model.new_cache(3, PAGE), [step])[0]
    assert torch.allclose(ours, logits, atol=1e-5)


def test_a_name_that_is_no_model_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="copyer") as caught:
        build_model("copyer", "cpu")
    assert caught.value.nearest == "copier"


def test_a_folder_that_does_not_exist_is_refused_and_nothing_is_downloaded():
    with pytest.raises(EngineError, match="no folder") as caught:
        build_model("someone/some-model", "cpu")
    assert "nothing is downloaded" in caught.value.hint


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(EngineError, match="cannot be loaded"):
        build_model(str(tmp_path), "cpu")


def test_pickled_weights_are_not_opened(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(EngineError, match="cannot be loaded"):
        build_model(str(tmp_path), "cpu")


def test_code_in_a_folder_is_not_run(folder, tmp_path):
    settings = json.loads((folder / "config.json").read_text())
    settings |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(EngineError):
        build_model(str(tmp_path), "cpu")
    assert not (tmp_path / "ran").exists()


def test_a_device_that_is_not_here_is_refused():
    if not torch.cuda.is_available():
        with pytest.raises(EngineError, match="no device `cuda`"):
            build_model("copier", "cuda")
    with pytest.raises(EngineError, match="no device"):
        build_model("copier", "abacus")


def test_an_empty_step_gives_no_rows(copier):
    assert copier.step(copier.new_cache(1, PAGE), []).shape == (0, copier.vocab_size)

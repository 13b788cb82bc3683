import pytest
import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.attention import SequenceStep, plan_step
from engine.copier_tokenizer import CopierCodec
from engine.model import PagedModel, build_model

PAGE, CHUNK, NEW_TOKENS = 8, 24, 12
# Around the borders of a page and of a chunk, and one token alone.
LENGTHS = (1, PAGE - 1, PAGE, PAGE + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 61)
TINY = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.4,
}
NETWORKS = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {}),
    "mistral, window 20": (MistralForCausalLM, MistralConfig, {"sliding_window": 20}),
    "gemma2, softcap": (
        Gemma2ForCausalLM,
        Gemma2Config,
        {"attn_logit_softcapping": 3.0, "sliding_window": 20, "query_pre_attn_scalar": 16},
    ),
    "llama4, chunked": (
        Llama4ForCausalLM,
        Llama4TextConfig,
        {"attention_chunk_size": 16, "num_local_experts": 2, "intermediate_size_mlp": 48},
    ),
    "deepseek_v3, values narrower than keys": (
        DeepseekV3ForCausalLM,
        DeepseekV3Config,
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "head_dim": 8,
            "v_head_dim": 12,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 16,
        },
    ),
    "gpt-oss, sinks": (
        GptOssForCausalLM,
        GptOssConfig,
        {"sliding_window": 20, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


def tiny_network(name, **settings):
    torch.set_num_threads(1)
    kind, config, own = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(7)  # noqa: TID251 - transformers draws weights from the global state
        network = kind(config(**{**TINY, **own, **settings}))
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.data.normal_(0.0, 0.25)
    return network.train(mode=False).requires_grad_(False)


def paged(network, **options):
    return PagedModel(
        name="tiny", network=network, codec=CopierCodec(), eos_token_ids=frozenset(), **options
    )


@torch.inference_mode()
def generated(network, prompt):
    """What transformers' own generate() writes."""
    own = network.config._attn_implementation
    network.set_attn_implementation("eager")
    ids = torch.tensor([prompt])
    output = network.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
    )
    network.set_attn_implementation(own)
    return output[0, len(prompt) :].tolist()


def paged_outputs(model, prompts, *, chunk=CHUNK):
    """Greedy over pages: ragged chunks and decodes mixed, pages handed out in a shuffled order."""
    total = sum(len(prompt) + NEW_TOKENS + PAGE for prompt in prompts) // PAGE + len(prompts)
    cache = model.new_cache(total, PAGE)
    cache.tensor.uniform_(-3.0, 3.0)  # what earlier owners left
    order = torch.randperm(total, generator=torch.Generator().manual_seed(1)).tolist()
    texts, done, tables = [list(prompt) for prompt in prompts], [0] * len(prompts), []
    for prompt in prompts:
        count = (len(prompt) + NEW_TOKENS) // PAGE + 1
        tables.append(tuple(order[:count]))
        del order[:count]
    while True:
        steps, owners = [], []
        for index, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            new = tuple(text[done[index] : done[index] + chunk])
            if len(text) == len(prompt) + NEW_TOKENS:
                continue
            end = done[index] + len(new)
            steps.append(
                SequenceStep(
                    tokens=new,
                    first_position=done[index],
                    page_table=tables[index],
                    kv_len=end,
                    wants_logits=end == len(text),
                )
            )
            owners += [index] if end == len(text) else []
            done[index] = end
        if not steps:
            return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]
        logits = model.step(cache, steps)
        for index, row in zip(owners, logits, strict=True):
            texts[index].append(int(row.argmax()))


def prompts_of(vocab_size):
    generator = torch.Generator().manual_seed(3)
    return [
        torch.randint(0, vocab_size, (length,), generator=generator).tolist() for length in LENGTHS
    ]


@pytest.mark.parametrize("name", NETWORKS)
def test_paged_output_equals_generate_token_for_token(name):
    network = tiny_network(name)
    prompts = prompts_of(TINY["vocab_size"])
    wanted = [generated(network, prompt) for prompt in prompts]
    assert len({token for output in wanted for token in output}) > 10, "too dull to tell apart"
    model = paged(network)
    assert paged_outputs(model, prompts) == wanted
    assert [paged_outputs(model, [prompt])[0] for prompt in prompts] == wanted


def test_copier_over_pages_equals_generate_token_for_token():
    torch.set_num_threads(1)
    model = build_model("copier", "cpu")
    line = "The door of the red house is green and the key lies under a stone near the old well."
    ids = model.encode(f"{line}\n{line}\n")
    prompts = [ids[:length] for length in LENGTHS]
    model.network.generation_config.eos_token_id = None
    # What follows an end is continued by nothing, so it is no part of the comparison.
    wanted = [answer(generated(model.network, prompt), model) for prompt in prompts]
    assert sum(map(len, wanted)) > 40
    together = paged_outputs(model, prompts)
    alone = [paged_outputs(model, [prompt])[0] for prompt in prompts]
    assert [answer(output, model) for output in together] == wanted
    assert [answer(output, model) for output in alone] == wanted


def answer(output, model):
    ends = [index for index, token in enumerate(output) if token in model.eos_token_ids]
    return output[: ends[0] + 1] if ends else output


def test_deterministic_logits_do_not_depend_on_company():
    network = tiny_network("llama")
    prompts = prompts_of(TINY["vocab_size"])
    alone = [first_logits(paged(network, deterministic=True), [p])[0] for p in prompts]
    together = first_logits(paged(network, deterministic=True), prompts)
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


def first_logits(model, prompts):
    cache = model.new_cache(64, PAGE)
    steps, start = [], 0
    for prompt in prompts:
        count = len(prompt) // PAGE + 1
        steps.append(prefill_of(prompt, tuple(range(start, start + count))))
        start += count
    return model.step(cache, steps)


def prefill_of(tokens, page_table, **changes):
    settings = {
        "tokens": tuple(tokens),
        "first_position": 0,
        "page_table": page_table,
        "kv_len": len(tokens),
        "wants_logits": True,
    }
    return SequenceStep(**{**settings, **changes})


def test_a_wrong_page_in_the_table_changes_the_logits():
    model = paged(tiny_network("llama"))
    cache = model.new_cache(8, PAGE)
    prompt = prompts_of(96)[-1][: 2 * PAGE]
    model.step(cache, [prefill_of(prompt, (0, 1)), prefill_of(prompt[::-1], (2, 3))])
    decode = {"first_position": 2 * PAGE, "kv_len": 2 * PAGE + 1}
    right = model.step(cache, [prefill_of([5], (0, 1, 4), **decode)])
    wrong = model.step(cache, [prefill_of([5], (0, 3, 4), **decode)])
    assert (right - wrong).abs().max() > 0.01


def test_too_long_a_kv_len_reads_stale_slots():
    model = paged(tiny_network("llama"))
    cache = model.new_cache(8, PAGE)
    prompt = prompts_of(96)[-1][: 2 * PAGE]
    model.step(cache, [prefill_of(prompt, (0, 1)), prefill_of(prompt[::-1], (2, 3))])
    at = {"first_position": 2 * PAGE - 1, "write": False}
    right = model.step(cache, [prefill_of([5], (0, 1, 3), kv_len=2 * PAGE, **at)])
    long = model.step(cache, [prefill_of([5], (0, 1, 3), kv_len=3 * PAGE, **at)])
    assert (right - long).abs().max() > 0.01


def test_without_write_the_pool_stays_as_it_was():
    model = paged(tiny_network("llama"))
    cache = model.new_cache(4, PAGE)
    before = cache.tensor.clone()
    model.step(cache, [prefill_of([1, 2, 3], (2,), write=False)])
    assert torch.equal(cache.tensor, before)
    model.step(cache, [prefill_of([1, 2, 3], (2,))])
    changed = (cache.tensor != before).flatten(1).any(dim=1).tolist()
    assert changed == [False, False, True, False]


def test_poison_in_slots_that_nobody_may_see_changes_nothing():
    model = paged(tiny_network("llama"))
    prompts = prompts_of(96)
    clean, poisoned = model.new_cache(64, PAGE), model.new_cache(64, PAGE)
    poisoned.tensor[:, :, 1] = 3e38
    steps = [prefill_of(prompts[1], (5,)), prefill_of(prompts[4], (8, 7, 6))]
    model.step(clean, steps), model.step(poisoned, steps)
    decodes = [
        prefill_of([4], (5,), first_position=len(prompts[1]), kv_len=len(prompts[1]) + 1),
        prefill_of([4], (8, 7, 6), first_position=len(prompts[4]), kv_len=len(prompts[4]) + 1),
    ]
    assert torch.equal(model.step(clean, decodes), model.step(poisoned, decodes))


def test_only_wanted_logits_come_back_and_in_order():
    model = paged(tiny_network("llama"))
    cache = model.new_cache(8, PAGE)
    first, second, third = [1, 2, 3], [4, 5], [6]
    steps = [
        prefill_of(first, (0,)),
        prefill_of(second, (1,), wants_logits=False),
        prefill_of(third, (2,)),
    ]
    logits = model.step(cache, steps)
    assert logits.shape == (2, model.vocab_size)
    assert logits.dtype == torch.float32
    alone = model.step(cache, [prefill_of(third, (3,))])
    assert torch.allclose(logits[1], alone[0], atol=1e-4)
    assert model.step(cache, [prefill_of(second, (1,), wants_logits=False)]).shape[0] == 0


def test_decodes_of_very_different_length_do_not_share_a_gather():
    model = paged(tiny_network("llama"))
    cache = model.new_cache(64, PAGE)
    lengths = (3, 9, 12, 200, 210)
    steps = [
        prefill_of([1], tuple(range(30)), first_position=length - 1, kv_len=length)
        for length in lengths
    ]
    groups = [group.kv_lens for group in plan_step(cache, steps).groups]
    assert groups == [(3, 9, 12), (200, 210)]


def test_a_table_too_short_for_the_step_is_a_bug_and_stops():
    model = paged(tiny_network("llama"))
    cache = model.new_cache(8, PAGE)
    with pytest.raises(AssertionError, match="table holds 8"):
        model.step(cache, [prefill_of(range(9), (0,))])
    with pytest.raises(AssertionError, match="no such page"):
        model.step(cache, [prefill_of([1], (8,))])

import pytest
import torch

from engine.adapters import random_adapters
from engine.attention import SequenceStep
from engine.model import build_model

PAGE = 16
LINE = "The code of the red house is seven and nine.\n"
STEM = "The door is open.\nThe code of the red"


@pytest.fixture(scope="module")
def copier():
    torch.set_num_threads(1)
    return build_model("copier", "cpu")


def answers(model, requests, *, cache=None, first_page=0, cached=0):
    """Greedy answers of (prompt ids, adapter) pairs in one batch, `cached` tokens in place."""
    cache = cache or model.new_cache(64, PAGE)
    texts, tables, done = [], [], []
    for index, (prompt, _) in enumerate(requests):
        tables.append(tuple(range(first_page + index * 8, first_page + index * 8 + 8)))
        texts.append(list(prompt))
        done.append(cached)
    for _ in range(24):
        steps = [
            SequenceStep(
                tokens=tuple(text[start:]),
                first_position=start,
                page_table=table,
                kv_len=len(text),
                wants_logits=True,
                adapter=adapter,
            )
            for text, start, table, (_, adapter) in zip(texts, done, tables, requests, strict=True)
        ]
        for index, row in enumerate(model.step(cache, steps)):
            done[index] = len(texts[index])
            texts[index].append(int(row.argmax()))
    outputs = []
    for text, (prompt, _) in zip(texts, requests, strict=True):
        output = text[len(prompt) :]
        ends = [index for index, token in enumerate(output) if token in model.eos_token_ids]
        outputs.append(model.decode(output[: ends[0]] if ends else output))
    return outputs


def test_each_adapter_recalls_and_ends_sentences_in_its_own_way(copier):
    prompt = copier.encode(LINE + STEM)
    value = " house is seven and nine"
    names = (None, *copier.adapters)
    assert copier.adapters == ("copier:a", "copier:b")
    alone = [answers(copier, [(prompt, name)])[0] for name in names]
    assert alone == [f"{value}.", f"{value}!", f"{value}?"]
    assert answers(copier, [(prompt, name) for name in names]) == alone


@pytest.mark.parametrize("name", ["copier:a", "copier:b"])
def test_pages_of_another_adapter_spoil_the_answer(copier, name):
    # Both records end alike before the value, so only the longer suffix tells them apart.
    prompt = copier.encode(
        "The code of the red house is seven and nine.\nThe code of the old house is four and two.\n"
        "The door is open.\nThe code of the red house is"
    )
    cached = len(prompt) // PAGE * PAGE
    assert cached >= 32

    def after_prefix_of(writer, reader):
        cache = copier.new_cache(64, PAGE)
        step = SequenceStep(
            tokens=tuple(prompt[:cached]),
            first_position=0,
            page_table=tuple(range(8)),
            kv_len=cached,
            wants_logits=False,
            adapter=writer,
        )
        copier.step(cache, [step])
        return answers(copier, [(prompt, reader)], cache=cache, cached=cached)[0]

    assert after_prefix_of(None, None) == " seven and nine."
    assert after_prefix_of(name, name)[:-1] == " seven and nine"
    assert not after_prefix_of(name, None).startswith(" seven and nine")


def test_replay_under_the_adapter_of_the_request_gives_what_it_recorded(copier):
    prompt = copier.encode(LINE + STEM)
    output = copier.encode(" house is seven and nine!")[1:]
    assert min(copier.replay_logprobs(prompt, output, adapter="copier:a")) > -0.01
    assert min(copier.replay_logprobs(prompt, output)) < -5.0


def test_random_adapters_change_every_projection_a_little_and_always_alike(copier):
    one, two = random_adapters(copier.network, ["m:a", "m:b"])
    again, _ = random_adapters(copier.network, ["m:a", "m:b"])
    assert len(one.changes) == 2 * copier.num_layers
    for name, change in one.changes.items():
        assert torch.equal(change.up, again.changes[name].up)
        assert not torch.equal(change.up, two.changes[name].up)
        weight = copier.network.get_submodule(name).weight
        assert float((change.up @ change.down).norm() / weight.norm()) == pytest.approx(0.1, 1e-3)


def test_an_unknown_adapter_is_a_bug_and_stops(copier):
    with pytest.raises(AssertionError, match="no such adapter"):
        answers(copier, [([1, 2], "copier:z")])

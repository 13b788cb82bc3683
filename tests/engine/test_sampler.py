from dataclasses import dataclass

import pytest
import torch

from engine.sampler import sample


@dataclass(frozen=True)
class Params:
    temperature: float = 0.0
    top_p: float = 1.0


LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def draws(params, *, seed=0, count=2000):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return [sample(LOGITS, params, generator).token_id for _ in range(count)]


def test_greedy_takes_the_likeliest_token_with_its_raw_logprob():
    got = sample(LOGITS, Params(), torch.Generator())
    assert got.token_id == 1
    assert got.logprob == pytest.approx(float(torch.log_softmax(LOGITS, 0)[1]))


def test_the_same_seed_draws_the_same_tokens_and_another_does_not():
    warm = Params(temperature=1.0)
    assert draws(warm, seed=3) == draws(warm, seed=3)
    assert draws(warm, seed=3) != draws(warm, seed=4)


def test_draws_follow_the_distribution_at_its_temperature():
    shares = torch.softmax(LOGITS / 2.0, 0)
    drawn = torch.bincount(torch.tensor(draws(Params(temperature=2.0))), minlength=4) / 2000
    assert torch.allclose(drawn, shares, atol=0.04)


def test_logprob_stays_raw_whatever_the_temperature():
    got = sample(LOGITS, Params(temperature=5.0), torch.Generator())
    assert got.logprob == pytest.approx(float(torch.log_softmax(LOGITS, 0)[got.token_id]))


def test_top_p_never_draws_the_tail_and_always_keeps_the_likeliest():
    assert set(draws(Params(temperature=1.0, top_p=0.8))) == {1, 2}
    assert set(draws(Params(temperature=1.0, top_p=0.01))) == {1}

from engine.request import Request, Sampling, too_long


def test_a_refusal_has_the_shape_of_the_openai_api():
    error = too_long(role="prefill", length=1340, limit=1322)
    assert error.as_json() == {
        "error": {
            "message": "Input length (1340 tokens) exceeds the maximum allowed length"
            " (1321 tokens) of the prefill role.",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "context_length_exceeded",
        }
    }


def test_each_output_token_has_its_own_seed():
    request = Request(request_id="a", prompt_ids=(1,))
    seeds = [request.token_seed(1, index) for index in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_request_without_a_seed_takes_the_engines_and_its_own_id():
    first, second = (Request(request_id=name, prompt_ids=(1,)) for name in "ab")
    assert first.token_seed(1, 0) != second.token_seed(1, 0)
    assert first.token_seed(1, 0) != first.token_seed(2, 0)


def test_a_request_with_a_seed_is_the_same_under_any_id_and_engine():
    first, second = (
        Request(request_id=name, prompt_ids=(1,), sampling=Sampling(seed=5)) for name in "ab"
    )
    assert first.token_seed(1, 3) == second.token_seed(2, 3)

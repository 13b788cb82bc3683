from engine.request import DecodeState

F01 = "reject-not-propagated"
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _fill(run, text):
    for number in range(3):
        run.submit(f"victim-{number}", text(number, 633))
    run.run()


def _trigger(run, text, length):
    run.submit("trigger", text(99, length, CAPITALS))
    run.run()


def test_pages_under_a_running_write_wait_for_the_writer(bench, text):
    run = bench(chunk_tokens=512, wire_pages_per_step=1)
    run.submit("a", text(1, 500))
    while run.engine.states("a")[1] is not DecodeState.TRANSFER or not run.engine.wire._copies:
        run.step()
    held = run.engine.decode_pages("a")
    run.engine.cancel("a")
    assert run.engine.decode._role.pool.num_free + len(held) == 2048 // 16
    run.submit("b", text(2, 500))
    run.step()
    assert not set(run.engine.decode_pages("b")) & set(held)
    run.run()
    assert run.engine.trace.reads_of("b").stale == 0
    assert run.is_whole()


def test_a_request_that_was_preempted_answers_as_if_alone(bench, text):
    def answers(pool):
        run = bench(decode_pool_tokens=pool)
        for name in ("a", "b", "c"):
            run.submit(name, text(ord(name), 200), max_tokens=120)
        retracted = False
        while run.engine.has_work:
            run.step()
            retracted |= any(
                run.engine.states(name)[1] is DecodeState.RETRACTED for name in run.answers
            )
        assert run.is_whole()
        assert all(run.engine.trace.reads_of(name).stale == 0 for name in run.answers)
        return retracted, {
            name: (answer.tokens, answer.logprobs) for name, answer in run.answers.items()
        }

    roomy, tight = answers(2048), answers(720)
    assert (roomy[0], tight[0]) == (False, True)
    assert roomy[1] == tight[1]


def test_an_answer_stops_where_context_or_pool_ends(bench, text):
    run = bench()
    run.submit("a", text(1, 630), max_tokens=5000)
    run.run()
    assert run.answers["a"].end.usage.completion_tokens == 1023 - 630
    assert run.answers["a"].end.finish_reason == "length"


def test_the_end_token_stops_an_answer(bench):
    run = bench()
    run.submit("a", (*b"ab", 256, *b"cdab"), max_tokens=50)
    run.run()
    assert run.answers["a"].end.finish_reason == "stop"
    assert run.answers["a"].tokens == [256]


def test_retire_makes_decode_wait_for_its_timeout_and_the_error_names_it(bench, text):
    run = bench(F01, ["retire"])
    _fill(run, text)
    before = run.clock.now_ns
    _trigger(run, text, 700)
    end = run.answers["trigger"].end
    assert "waiting timeout" in end.error.message
    assert "2s" in end.error.message
    assert run.clock.now_ns - before < 100_000_000, "the wait was not skipped"
    assert end.at_ns - before > 2_000_000_000, "the wait is missing from the reported time"


def test_sampling_is_repeatable_by_seed_whatever_runs_beside(bench, text):
    def sampled(seed, company):
        run = bench()
        for number in range(company):
            run.submit(f"beside-{number}", text(number, 80), temperature=1.0, seed=number)
        run.submit("a", text(7, 60), temperature=4.0, seed=seed, max_tokens=30)
        run.run()
        return run.answers["a"].tokens

    assert sampled(1, 0) == sampled(1, 3)
    assert sampled(1, 0) != sampled(2, 0)


def test_each_step_makes_at_most_one_token_of_a_request(bench, text):
    run = bench()
    run.submit("a", text(1, 100), max_tokens=20)
    before = 0
    while run.engine.has_work:
        run.step()
        assert len(run.answers["a"].tokens) - before <= 1
        before = len(run.answers["a"].tokens)


def test_pages_are_reserved_for_the_whole_prompt_before_prefill_begins(bench, text):
    run = bench()
    run.submit("a", text(1, 600))
    run.step()
    assert run.engine.states("a")[1] is DecodeState.TRANSFER
    assert run.engine.decode_pages("a") == tuple(range(38))


def test_what_does_not_fit_waits_and_is_not_refused(bench, text):
    run = bench(decode_pool_tokens=704)
    for number in range(4):
        run.submit(f"r{number}", text(number, 500))
    run.step()
    states = [run.engine.states(f"r{number}")[1] for number in range(4)]
    assert states == [DecodeState.TRANSFER] + [DecodeState.QUEUED] * 3
    run.run()
    assert all(answer.end.status == 200 for answer in run.answers.values())


def test_a_decode_pool_smaller_than_prefills_refuses_by_its_own_limit(bench, text):
    run = bench(prefill_pool_tokens=1024, decode_pool_tokens=512)
    run.submit("a", text(1, 506))
    run.submit("b", text(1, 505))
    run.run()
    assert run.answers["a"].end.status == 400
    assert "505 tokens) of the decode role" in run.answers["a"].end.error.message
    assert run.answers["b"].end.status == 200

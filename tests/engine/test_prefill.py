from engine.request import PrefillState

F01 = "reject-not-propagated"
CAPITALS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _fill(run, text):
    for number in range(3):
        run.submit(f"victim-{number}", text(number, 633))
    run.run()


def test_the_placeholders_first_token_does_not_depend_on_the_prompt(bench, text):
    firsts = set()
    for seed in range(5):
        run = bench(F01)
        _fill(run, text)
        run.submit("trigger", text(seed, 700, CAPITALS))
        run.run()
        firsts.add(run.answers["trigger"].tokens[0])
    assert len(firsts) == 1


def test_a_shared_prefix_is_served_from_the_cache_and_is_no_stale_read(bench, text):
    run = bench(prefix_cache=True)
    shared = text(1, 320)
    run.submit("first", shared + text(2, 40))
    run.run()
    run.submit("second", shared + text(3, 40))
    run.submit("salted", shared + text(4, 40), cache_salt="tenant b")
    run.run()
    cached = {name: answer.end.usage.cached_tokens for name, answer in run.answers.items()}
    assert cached == {"first": 0, "second": 320, "salted": 0}
    for name in run.answers:
        assert run.engine.trace.reads_of(name).stale == 0
        assert run.engine.trace.reads_of(name, "prefill").stale == 0


def test_a_cached_prefix_changes_no_token_and_no_log_probability(bench, text):
    def second(prefix_cache):
        run = bench(prefix_cache=prefix_cache)
        run.submit("first", text(1, 360))
        run.run()
        run.submit("second", text(1, 320) + text(3, 40))
        run.run()
        return run.answers["second"].tokens, run.answers["second"].logprobs

    assert second(prefix_cache=True) == second(prefix_cache=False)


def test_a_prompt_that_waits_its_turn_is_never_late(bench, text):
    """Engine time stands still while prefill computes, however long the queue is."""
    run = bench(chunk_tokens=16, waiting_timeout_s=0.005, decode_pool_tokens=8192)
    for number in range(8):
        run.submit(f"r{number}", text(number, 600))
    run.run()
    assert all(answer.end.status == 200 for answer in run.answers.values())


def test_more_requests_than_rows_take_their_turn(bench, text):
    run = bench(running_max=2)
    for number in range(9):
        run.submit(f"r{number}", text(number, 40))
    run.run()
    assert all(answer.end.status == 200 for answer in run.answers.values())
    assert run.is_whole()


def test_nothing_is_computed_before_decode_has_published_its_pages(bench, text):
    run = bench(decode_pool_tokens=704)
    run.submit("a", text(1, 600))
    run.submit("b", text(2, 600))
    run.step()
    assert run.engine.states("a")[0] is PrefillState.RUNNING
    assert run.engine.states("b")[0] is PrefillState.BOOTSTRAP
    run.run()
    assert run.answers["b"].end.status == 200


def test_finished_pages_leave_before_the_last_chunk(bench, text):
    run = bench(chunk_tokens=64, wire_pages_per_step=1)
    run.submit("a", text(1, 600))
    run.step()
    run.step()
    assert run.engine.states("a")[0] is PrefillState.RUNNING
    assert run.engine.wire.pages_arrived(next(iter(run.engine.wire._rooms))) == 1
    run.run()
    assert run.engine.trace.reads_of("a").stale == 0


def test_source_pages_stay_held_until_the_wire_has_read_them(bench, text):
    run = bench(chunk_tokens=1024, wire_pages_per_step=1)
    run.submit("a", text(1, 500))
    pool = run.engine.prefill._role.pool
    run.step()
    while run.engine.states("a")[0] is PrefillState.SENDING:
        assert pool.num_free == 40 - 32, "pages were freed under the wire"
        run.step()
    assert pool.num_free == 40


def test_source_pages_of_a_cut_request_go_back_at_once(bench, text):
    run = bench(chunk_tokens=1024, wire_pages_per_step=1)
    run.submit("a", text(1, 500))
    run.step()
    run.engine.cancel("a")
    assert run.engine.prefill._role.pool.num_free == 40
    run.run()
    assert run.is_whole()


def test_an_aborted_result_leaves_nothing_in_the_prefix_cache(bench, text):
    run = bench(F01, ["retire"], prefix_cache=True, page_size=1, prefill_pool_tokens=640)
    run.submit("over", text(1, 700))
    run.run()
    assert run.engine.prefill.prefix.num_pages == 0


def test_pages_of_the_prefix_cache_make_way_for_prompts(bench, text):
    run = bench(prefix_cache=True)
    for number in range(6):
        run.submit(f"r{number}", text(number, 600))
        run.run()
        assert run.answers[f"r{number}"].end.status == 200
    assert run.engine.prefill.prefix.num_pages <= 40
    assert run.is_whole()

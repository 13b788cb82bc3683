from engine.prefix import Namespace
from engine.trace import PageTrace

HERE = Namespace(model="m")
PAGE = 4


def _trace():
    return PageTrace({"prefill": 8 * PAGE, "decode": 8 * PAGE}, PAGE)


def _write(trace, name, prompt, pages, role="decode", namespace=HERE):
    ordinal = trace.begin(name, namespace, prompt)
    trace.wrote(role, ordinal, pages, 0, prompt)
    return ordinal


def test_own_slots_are_in_order():
    trace = _trace()
    ordinal = _write(trace, "a", range(6), (2, 5))
    trace.read("decode", ordinal, (2, 5), 6, cached_tokens=0)
    reads = trace.reads_of("a")
    assert (reads.slots, reads.stale, reads.positions) == (6, 0, ())


def test_another_requests_slots_are_counted_by_their_writer():
    trace = _trace()
    _write(trace, "a", range(6), (2, 5))
    ordinal = _write(trace, "b", range(100, 103), (2,))
    trace.read("decode", ordinal, (2, 5), 8, cached_tokens=0)
    reads = trace.reads_of("b")
    assert reads.foreign == {"a": 3}
    assert reads.unwritten == 2
    assert reads.positions == (3, 4, 5, 6, 7)


def test_the_own_slot_of_another_position_is_not_in_order():
    trace = _trace()
    ordinal = _write(trace, "a", range(8), (2, 5))
    trace.read("decode", ordinal, (5, 2), 8, cached_tokens=0)
    assert trace.reads_of("a").foreign == {"a": 8}


def test_a_slot_read_many_times_counts_once_and_stays_counted():
    trace = _trace()
    _write(trace, "a", range(4), (2,))
    ordinal = _write(trace, "b", range(100, 102), (2,))
    trace.read("decode", ordinal, (2,), 3, cached_tokens=0)
    trace.wrote("decode", ordinal, (2,), 2, (102, 103))
    trace.read("decode", ordinal, (2,), 4, cached_tokens=0)
    assert trace.reads_of("b").foreign == {"a": 1}
    assert trace.reads_of("b").slots == 4


def test_a_cached_prefix_is_in_order_only_when_namespace_and_tokens_agree():
    trace = _trace()
    _write(trace, "a", range(8), (2, 5))
    for name, namespace, prompt, stale in (
        ("same", HERE, range(8), 0),
        ("salted", Namespace(model="m", salt="s"), range(8), 4),
        ("other start", HERE, (9, *range(1, 8)), 4),
    ):
        ordinal = trace.begin(name, namespace, tuple(prompt))
        trace.read("decode", ordinal, (2,), 4, cached_tokens=4)
        assert trace.reads_of(name).stale == stale, name


def test_without_a_cache_hit_even_equal_content_is_foreign():
    trace = _trace()
    _write(trace, "a", range(4), (2,))
    ordinal = trace.begin("b", HERE, range(4))
    trace.read("decode", ordinal, (2,), 4, cached_tokens=0)
    assert trace.reads_of("b").foreign == {"a": 4}


def test_tags_cross_the_wire_with_the_whole_page():
    trace = _trace()
    _write(trace, "a", range(4), (1,), role="prefill")
    _write(trace, "b", range(2), (1,), role="prefill")
    trace.copied("prefill", 1, "decode", 6)
    writers = [trace.writer_of("decode", 6 * PAGE + offset) for offset in range(4)]
    assert writers == ["b", "b", "a", "a"]
    assert trace.writer_of("decode", 0) is None


def test_tags_travel_to_the_host_and_back():
    trace = _trace()
    ordinal = _write(trace, "a", range(6), (2, 5))
    tags = trace.take("decode", (2, 5))
    _write(trace, "b", range(8), (2, 5))
    trace.put("decode", (7, 0), tags)
    trace.read("decode", ordinal, (7, 0), 6, cached_tokens=0)
    assert trace.reads_of("a").stale == 0


def test_a_request_that_never_read_has_read_nothing():
    assert _trace().reads_of("nobody").slots == 0

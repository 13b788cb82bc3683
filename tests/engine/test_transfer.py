import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.cache import KVCache
from engine.config import EngineConfig
from engine.faults import fault_plan
from engine.transfer import LATE_TURNS, KVPoll, MetadataRow, Wire, check_handoff, kv_digest

PAGE = 4


def _cache(pages=16):
    cache = KVCache(
        num_pages=pages, num_layers=2, page_size=PAGE, num_kv_heads=1, head_dim=3,
        device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(pages)
    cache.tensor.copy_(torch.randn(cache.tensor.shape, generator=generator))
    return cache


def _row(room, tokens, digest=None):
    return MetadataRow(
        room=room, first_token=1, first_logprob=-0.5, tokens_sent=tokens, cached_tokens=0,
        digest=digest,
    )  # fmt: skip


@pytest.fixture
def caches():
    return _cache(16), _cache(17)


@pytest.fixture
def wire(caches):
    return Wire(*caches, faults=fault_plan(None), trace=None)


def test_a_room_goes_through_its_states_in_order(wire):
    key = wire.open(7)
    polls = [wire.poll(key)]
    wire.publish(key, (4, 5, 6))
    polls.append(wire.poll(key))
    wire.post(key, (0, 1), first_page=0)
    polls.append(wire.poll(key))
    wire.post(key, (2,), first_page=2, metadata=_row(7, 12))
    wire.pump(2)
    polls.append(wire.poll(key))
    wire.pump(1)
    polls.append(wire.poll(key))
    assert polls == [
        KVPoll.BOOTSTRAPPING,
        KVPoll.WAITING_FOR_INPUT,
        KVPoll.TRANSFERRING,
        KVPoll.TRANSFERRING,
        KVPoll.SUCCESS,
    ]
    assert wire.metadata(key).tokens_sent == 12


def test_pages_arrive_whole_in_the_pages_that_decode_named(wire, caches):
    source, destination = caches
    before = destination.tensor.clone()
    key = wire.open(7)
    wire.publish(key, (9, 3))
    wire.post(key, (0, 1), first_page=0, metadata=_row(7, 8))
    wire.pump(5)
    assert torch.equal(destination.page(9), source.page(0))
    assert torch.equal(destination.page(3), source.page(1))
    untouched = [page for page in range(17) if page not in (3, 9)]
    assert torch.equal(destination.tensor[untouched], before[untouched])


def test_the_metadata_row_never_overtakes_a_page(wire):
    key = wire.open(7)
    wire.publish(key, (4, 5))
    wire.post(key, (0, 1), first_page=0, metadata=_row(7, 8))
    wire.pump(1)
    with pytest.raises(AssertionError, match="before it was written"):
        wire.metadata(key)


def test_a_failed_room_never_becomes_a_success(wire):
    key = wire.open(7)
    wire.publish(key, (4,))
    wire.post(key, (0,), first_page=0, metadata=_row(7, 4))
    wire.fail(key, "cut")
    wire.pump(5)
    wire.post(key, (1,), first_page=0, metadata=_row(7, 4))
    wire.publish(key, (6,))
    assert wire.poll(key) == KVPoll.FAILED
    assert wire.reason(key) == "cut"
    for _ in range(LATE_TURNS):
        wire.pump(5)
    assert wire.pages_arrived(key) == 1, "a failed room took another copy"


def test_a_success_never_becomes_a_failure(wire):
    key = wire.open(7)
    wire.publish(key, (4,))
    wire.post(key, (0,), first_page=0, metadata=_row(7, 4))
    wire.pump(1)
    wire.fail(key, "late")
    assert wire.poll(key) == KVPoll.SUCCESS


def test_a_posted_copy_still_lands_after_its_room_has_failed(wire, caches):
    source, destination = caches
    key = wire.open(7)
    wire.publish(key, (4,))
    wire.post(key, (0,), first_page=0)
    assert not wire.is_read(key)
    wire.fail(key, "cut")
    assert wire.is_read(key)
    sent = source.page(0).clone()
    source.page(0).zero_()  # its next owner writes; what is under way has left
    for _ in range(LATE_TURNS - 1):
        assert wire.pump(1), "a late copy is work that is left"
        assert not wire.is_drained(key)
        assert not torch.equal(destination.page(4), sent)
    wire.pump(1)
    assert wire.is_drained(key)
    assert torch.equal(destination.page(4), sent)
    assert not wire.pump(1)


def test_the_same_room_again_is_another_generation(wire):
    first = wire.open(7)
    wire.publish(first, (4,))
    wire.post(first, (0,), first_page=0)
    wire.fail(first, "cut")
    second = wire.open(7)
    assert (first.generation, second.generation) == (1, 2)
    assert wire.poll(second) == KVPoll.BOOTSTRAPPING
    assert wire.is_drained(second)
    assert not wire.is_drained(first), "one attempt answered for the other"


def test_a_list_longer_than_the_reservation_is_cut(wire):
    key = wire.open(7)
    wire.publish(key, (4,))
    wire.post(key, (0, 1, 2), first_page=0, metadata=_row(7, 12))
    wire.pump(9)
    assert wire.pages_arrived(key) == 1
    assert wire.poll(key) == KVPoll.SUCCESS


def test_an_aborted_sender_does_not_tell_decode(wire):
    key = wire.open(7)
    wire.publish(key, (4,))
    wire.abort_sender(key)
    assert wire.poll(key) == KVPoll.WAITING_FOR_INPUT


def test_a_room_is_gone_when_both_sides_left_it_and_no_copy_waits(wire):
    key = wire.open(7)
    wire.publish(key, (4,))
    wire.post(key, (0,), first_page=0)
    wire.fail(key, "cut")
    wire.close(key, "prefill")
    wire.close(key, "decode")
    assert key in wire._rooms
    for _ in range(LATE_TURNS):
        wire.pump(1)
    assert key not in wire._rooms
    wire.check_integrity()


def _arrived(caches, fixes, fault=None):
    """A wire with one room of two pages that has arrived."""
    wire = Wire(*caches, faults=fault_plan(fault, fixes), trace=None)
    key = wire.open(7)
    wire.publish(key, (9, 3))
    wire.post(key, (0, 1), first_page=0, metadata=_row(7, 8))
    wire.pump(5)
    assert wire.has_arrived(key)
    return wire, key


@pytest.mark.parametrize("fix", ["checksum", "coverage"])
def test_with_a_check_on_a_room_is_a_success_when_decode_has_accepted_it(caches, fix):
    wire, key = _arrived(caches, [fix])
    assert wire.poll(key) == KVPoll.TRANSFERRING
    wire.accept(key)
    assert wire.poll(key) == KVPoll.SUCCESS


def test_a_room_that_decode_refuses_has_failed_and_nothing_of_it_is_late(caches):
    wire, key = _arrived(caches, ["coverage"])
    wire.refuse(key, "wrong")
    assert (wire.poll(key), wire.reason(key)) == (KVPoll.FAILED, "wrong")
    assert wire.is_drained(key)
    assert not wire.has_arrived(key)


def test_a_room_is_sent_again_whole_and_at_most_once(caches):
    source, destination = caches
    wire, key = _arrived(caches, ["checksum"])
    for page in (9, 3):
        destination.page(page).zero_()
    assert wire.resend(key)
    assert not wire.has_arrived(key)
    assert not wire.is_read(key)
    wire.pump(1)
    assert (wire.poll(key), wire.pages_arrived(key)) == (KVPoll.TRANSFERRING, 1)
    wire.pump(1)
    assert wire.has_arrived(key)
    assert torch.equal(destination.page(9), source.page(0))
    assert torch.equal(destination.page(3), source.page(1))
    assert not wire.resend(key)
    wire.check_integrity()


def test_without_a_check_the_sender_has_gone_and_nothing_is_sent_again(caches):
    wire, key = _arrived(caches, [])
    assert wire.poll(key) == KVPoll.SUCCESS
    assert not wire.resend(key)


class WireRules(RuleBasedStateMachine):
    """Any order of calls keeps every copy counted, and final states final."""

    fixes: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.wire = Wire(_cache(), _cache(), faults=fault_plan(None, self.fixes), trace=None)
        self.keys = {}
        self.final = {}

    @rule(room=st.integers(0, 2))
    def open(self, room):
        self.keys[self.wire.open(room)] = {"prefill", "decode"}

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def act(self, data):
        key = data.draw(st.sampled_from(sorted(self.keys, key=repr)))
        actions = ["publish", "post", "last", "fail", "close"]
        if self.wire.has_arrived(key):
            actions += ["resend", "accept", "refuse"]
        action = data.draw(st.sampled_from(actions))
        if action == "publish":
            self.wire.publish(key, (data.draw(st.integers(0, 15)), 3))
        elif action in ("post", "last"):
            metadata = _row(key.room, 4) if action == "last" else None
            self.wire.post(key, (1, 2), first_page=0, metadata=metadata)
        elif action == "fail":
            self.wire.fail(key, "cut")
        elif action in ("resend", "accept"):
            getattr(self.wire, action)(key)
        elif action == "refuse":
            self.wire.refuse(key, "wrong")
        else:
            side = data.draw(st.sampled_from(sorted(self.keys[key])))
            self.wire.close(key, side)
            self.keys[key].discard(side)
            if not self.keys[key]:
                del self.keys[key]

    @rule(pages=st.integers(1, 4))
    def pump(self, pages):
        self.wire.pump(pages)

    @invariant()
    def is_sound(self):
        self.wire.check_integrity()
        for key in self.keys:
            poll = self.wire.poll(key)
            if key in self.final:
                assert poll == self.final[key], "a final state changed"
            if poll in (KVPoll.FAILED, KVPoll.SUCCESS):
                self.final[key] = poll


class CheckedWireRules(WireRules):
    """The same where decode has the last word."""

    fixes = ("checksum",)


WireRules.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
CheckedWireRules.TestCase.settings = WireRules.TestCase.settings
TestWireRules = WireRules.TestCase
TestCheckedWireRules = CheckedWireRules.TestCase


# --- what arrived against what was reserved ----------------------------------------------------


def _digest(cache, pages, tokens, granularity="token"):
    return kv_digest(cache, pages, tokens, page_size=PAGE, granularity=granularity)


def test_a_digest_covers_every_token_slot_and_no_other():
    cache = _cache()
    pages, before = (3, 1), _digest(_cache(), (3, 1), 6)
    cache.tensor[1, 1, 1, 2] += 1  # slot 6: the first one that does not count
    assert _digest(cache, pages, 6) == before
    cache.tensor[1, 1, 1, 1] += 1  # slot 5: the last one that does
    assert _digest(cache, pages, 6) != before


def test_a_digest_knows_its_length_even_over_equal_bytes():
    cache = _cache()
    cache.tensor.zero_()
    assert _digest(cache, (0, 1), 5) != _digest(cache, (0, 1), 6)


def test_a_page_digest_can_not_tell_two_lengths_in_one_page_apart():
    cache = _cache()
    assert _digest(cache, (0, 1), 5, "page") == _digest(cache, (0, 1), 6, "page")


def _check(fixes, row, *, tokens=6, arrived=2, granularity="token"):
    config = EngineConfig(
        page_size=PAGE, prefill_pool_tokens=64, decode_pool_tokens=64, context_tokens=64,
        faults=fault_plan(None, fixes), granularity=granularity,
    )  # fmt: skip
    return check_handoff(
        config, _cache(), room=7, row=row, pages_arrived=arrived, pages=(3, 1),
        reserved_tokens=tokens,
    )  # fmt: skip


def test_without_a_fix_the_room_is_all_that_is_checked():
    assert _check((), _row(7, 1)) is None
    assert _check((), _row(8, 6)).code == "kv_room_mismatch"


def test_coverage_counts_tokens():
    assert _check(["coverage"], _row(7, 6)) is None
    error = _check(["coverage"], _row(7, 5))
    assert error.status == 500
    assert "covers 5 tokens, but decode reserved 6" in error.message
    assert _check(["coverage"], _row(7, 5), granularity="page") is None
    assert _check(["coverage"], _row(7, 4), arrived=1, granularity="page") is not None


def test_coverage_counts_what_arrived_and_not_what_the_sender_claims():
    error = _check(["coverage"], _row(7, 6), arrived=1)
    assert "covers 2 tokens, but decode reserved 6" in error.message
    assert _check(["coverage"], _row(7, 6), arrived=1, granularity="page") is not None


def test_a_missing_or_zero_digest_is_a_mismatch():
    right = _digest(_cache(), (3, 1), 6)
    assert _check(["checksum"], _row(7, 6, right)) is None
    for digest in (None, b"", bytes(16)):
        assert _check(["checksum"], _row(7, 6, digest)).code == "kv_checksum_mismatch"

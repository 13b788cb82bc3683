from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.faults import fault_plan
from engine.pool import PagePool
from engine.prefix import Namespace, PrefixCache

PAGE = 2
PAGES = 24
NAMESPACES = (
    Namespace(model="m"),
    Namespace(model="m", salt="s"),
    Namespace(model="m", adapter="s"),
)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)


class CacheAgainstDict(RuleBasedStateMachine):
    """PrefixCache with keys of 3 bits, so that they collide all the time, against a dict that
    keeps whole prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.cache = PrefixCache(self.pool, PAGE, hash_bits=3, faults=fault_plan(None))
        self.written: dict[int, tuple[Namespace, tuple[int, ...]]] = {}
        self.held: list[tuple[int, ...]] = []

    @rule(namespace=st.sampled_from(NAMESPACES), prompt=PROMPTS)
    def compute(self, namespace, prompt):
        """A request takes what is cached, computes the rest, and leaves its pages."""
        hit = self.cache.match(namespace, prompt)
        self.check_hit(namespace, prompt, hit)
        needed = -(-len(prompt) // PAGE) - len(hit)
        if self.pool.num_free < needed:
            self.cache.evict(needed - self.pool.num_free)
        if self.pool.num_free < needed:
            self.pool.release(hit)
            return
        own = self.pool.allocate(needed)
        pages = hit + own
        for index, page in enumerate(pages):
            if page in own:
                self.written[page] = (namespace, prompt[: (index + 1) * PAGE])
        self.cache.insert(namespace, prompt, pages)
        self.held.append(pages)

    def check_hit(self, namespace, prompt, hit):
        assert len(hit) * PAGE < len(prompt), "the last token was not left to be computed"
        for index, page in enumerate(hit):
            assert self.written[page] == (namespace, prompt[: (index + 1) * PAGE])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data):
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @rule(count=st.integers(1, 4))
    def evict(self, count):
        before = self.pool.num_free
        freed = self.cache.evict(count)
        assert self.pool.num_free == before + freed

    @invariant()
    def is_whole(self):
        self.cache.check_integrity()
        self.pool.check_integrity()
        expected = dict.fromkeys(range(PAGES), 0)
        for pages in [*self.held, self.cache.held_pages]:
            for page in pages:
                expected[page] += 1
        assert all(self.pool.holders(page) == count for page, count in expected.items())

    def teardown(self):
        for pages in self.held:
            self.pool.release(pages)
        self.cache.clear()
        assert self.pool.num_free == PAGES


CacheAgainstDict.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestCacheAgainstDict = CacheAgainstDict.TestCase


def _cache(fault=None, pages=32):
    pool = PagePool(pages)
    return pool, PrefixCache(pool, 16, hash_bits=128, faults=fault_plan(fault))


def _remember(pool, cache, namespace, prompt):
    pages = pool.allocate(-(-len(prompt) // 16))
    cache.insert(namespace, prompt, pages)
    pool.release(pages)
    return pages


def test_an_equal_prefix_is_served_up_to_its_last_full_page():
    pool, cache = _cache()
    prompt = tuple(range(40))
    pages = _remember(pool, cache, NAMESPACES[0], prompt)
    assert cache.match(NAMESPACES[0], (*prompt[:37], 99, 99)) == pages[:2]
    assert cache.match(NAMESPACES[0], (*prompt[:20], 99)) == pages[:1]


def test_at_least_one_token_is_left_to_be_computed():
    pool, cache = _cache()
    prompt = tuple(range(32))
    _remember(pool, cache, NAMESPACES[0], prompt)
    assert len(cache.match(NAMESPACES[0], prompt)) == 1


def test_salt_and_adapter_part_equal_prompts():
    pool, cache = _cache()
    prompt = tuple(range(40))
    _remember(pool, cache, NAMESPACES[1], prompt)
    assert cache.match(NAMESPACES[0], prompt) == ()
    assert cache.match(NAMESPACES[2], prompt) == (), "salt `s` passed for adapter `s`"
    assert len(cache.match(NAMESPACES[1], prompt)) == 2


def test_a_page_that_a_request_still_holds_is_not_evicted():
    pool, cache = _cache()
    prompt = tuple(range(40))
    _remember(pool, cache, NAMESPACES[0], prompt)
    held = cache.match(NAMESPACES[0], prompt)
    assert cache.evict(5) == 0
    pool.release(held)
    assert cache.evict(5) == 2


def test_the_collision_fault_serves_another_prompts_pages_and_the_healthy_cache_does_not():
    prompts = [tuple(range(seed, seed + 64)) for seed in range(0, 2000, 20)]
    for fault in (None, "prefix-hash-collision"):
        pool, cache = _cache(fault, pages=1000)
        foreign = 0
        for prompt in prompts:
            foreign += len(cache.match(NAMESPACES[0], prompt)) > 0
            _remember(pool, cache, NAMESPACES[0], prompt)
        if fault is None:
            assert foreign == 0
        else:  # 100 prompts in 64 buckets
            assert foreign >= 36

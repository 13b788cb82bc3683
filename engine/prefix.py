"""PrefixCache: finished pages of earlier prompts, found again by a chain of page digests.

A key covers the namespace (model, adapter, salt) and every token up to the end of its page. Tokens
are compared on a hit all the same, so that no digest, however short, can hand out the wrong page.
Off by default; on the prefill role only.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.faults import COLLISION_BITS, FaultPlan, Site
from engine.pool import PagePool


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """What two prompts must share before they may share a page.

    Attributes:
        model: Name of the base model.
        adapter: Name of the adapter; None = the base model alone.
        salt: `cache_salt` of the request; None = no salt.
    """

    model: str
    adapter: str | None = None
    salt: str | None = None

    def encoded(self) -> bytes:
        """Return it as bytes that no other namespace has."""
        return json.dumps([self.model, self.adapter, self.salt]).encode()


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    key: bytes
    page: int
    namespace: Namespace
    tokens: tuple[int, ...]
    parent: "_Entry | None"
    children: int = 0
    used: int = field(default=0)


class PrefixCache:
    """Pages by the digest of all that stands before their end.

    Invariant: each entry holds its page once in the pool; its parent is an entry too.
    """

    def __init__(
        self, pool: PagePool, page_size: int, *, hash_bits: int, faults: FaultPlan
    ) -> None:
        self._pool = pool
        self._page_size = page_size
        self._hash_bits = hash_bits
        self._faults = faults
        self._entries: dict[bytes, _Entry] = {}
        self._uses = 0

    @property
    def num_pages(self) -> int:
        """Pages that the cache holds."""
        return len(self._entries)

    @property
    def held_pages(self) -> tuple[int, ...]:
        """The pages that the cache holds, each once."""
        return tuple(entry.page for entry in self._entries.values())

    def match(self, namespace: Namespace, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return the pages that hold the longest cached prefix, each retained for the caller.

        At least the last token is left to be computed: its logits are needed.
        """
        usable = (len(tokens) - 1) // self._page_size
        chain = self._walk(namespace, tokens, usable)
        for entry in reversed(chain):  # the deepest is the least recent, so it is evicted first
            self._uses += 1
            entry.used = self._uses
        pages = tuple(entry.page for entry in chain)
        self._pool.retain(pages)
        return pages

    def insert(self, namespace: Namespace, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Keep the full pages of a computed prompt; pages that are known already are passed over.

        Args:
            namespace: Of the request that computed them.
            tokens: The prompt.
            pages: Physical pages of the prompt, in logical order.
        """
        usable = len(tokens) // self._page_size
        chain = self._walk(namespace, tokens, usable)
        parent = chain[-1] if chain else None
        for index in range(len(chain), usable):
            own = self._page_tokens(tokens, index)
            key = self._key(parent, index, namespace, own)
            if key in self._entries:
                return  # another prompt's, told apart by its tokens: the way down is closed
            self._pool.retain(pages[index : index + 1])
            self._uses += 1
            entry = _Entry(
                key=key, page=pages[index], namespace=namespace, tokens=own, parent=parent,
                used=self._uses,
            )  # fmt: skip
            if parent is not None:
                parent.children += 1
            self._entries[key] = entry
            parent = entry

    def evict(self, count: int) -> int:
        """Free up to `count` pages that only the cache holds, least recently used leaf first.

        Returns:
            How many pages were freed.
        """
        freed = 0
        while freed < count:
            leaves = [
                entry
                for entry in self._entries.values()
                if entry.children == 0 and self._pool.holders(entry.page) == 1
            ]
            if not leaves:
                break
            self._drop(min(leaves, key=lambda entry: entry.used))
            freed += 1
        return freed

    def clear(self) -> None:
        """Let go of every page; those that requests still hold stay theirs."""
        for entry in self._entries.values():
            self._pool.release((entry.page,))
        self._entries.clear()

    def check_integrity(self) -> None:
        """Assert that every entry holds its page and hangs on an entry."""
        children: dict[bytes, int] = {}
        for key, entry in self._entries.items():
            assert entry.key == key, "an entry under a foreign key"
            assert self._pool.holders(entry.page) >= 1, f"page {entry.page} is cached and free"
            if entry.parent is not None:
                assert self._entries.get(entry.parent.key) is entry.parent, "a parent is gone"
                children[entry.parent.key] = children.get(entry.parent.key, 0) + 1
        for key, entry in self._entries.items():
            assert entry.children == children.get(key, 0), "children are miscounted"
        assert len(set(self.held_pages)) == len(self._entries), "one page under two keys"

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.key]
        if entry.parent is not None:
            entry.parent.children -= 1
        self._pool.release((entry.page,))

    def _walk(self, namespace: Namespace, tokens: Sequence[int], usable: int) -> list[_Entry]:
        chain: list[_Entry] = []
        parent: _Entry | None = None
        for index in range(usable):
            own = self._page_tokens(tokens, index)
            entry = self._entries.get(self._key(parent, index, namespace, own))
            if entry is None or not self._is_same(entry, parent, namespace, own):
                break
            chain.append(entry)
            parent = entry
        return chain

    def _is_same(
        self,
        entry: _Entry,
        parent: _Entry | None,
        namespace: Namespace,
        tokens: tuple[int, ...],
    ) -> bool:
        if self._faults.strikes(Site.PREFIX_COMPARISON):
            return True
        return entry.tokens == tokens and entry.namespace == namespace and entry.parent is parent

    def _key(
        self,
        parent: _Entry | None,
        index: int,
        namespace: Namespace,
        tokens: tuple[int, ...],
    ) -> bytes:
        if self._faults.strikes(Site.PREFIX_KEY):
            return self._cut_key(parent, index, namespace, tokens)
        before = parent.key if parent is not None else namespace.encoded()
        return _cut(_digest(before, tokens), self._hash_bits)

    def _cut_key(
        self,
        parent: _Entry | None,
        index: int,
        namespace: Namespace,
        tokens: tuple[int, ...],
    ) -> bytes:
        if parent is None:
            root = _cut(_digest(namespace.encoded(), tokens), COLLISION_BITS)
            return root + index.to_bytes(4, "big")
        return parent.key[:-4] + index.to_bytes(4, "big")

    def _page_tokens(self, tokens: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(tokens[index * self._page_size : (index + 1) * self._page_size])


def _digest(before: bytes, tokens: Sequence[int]) -> bytes:
    """Return 16 bytes over what stands before and this page's tokens, lengths included."""
    state = hashlib.blake2b(digest_size=16)
    state.update(len(before).to_bytes(4, "big") + before)
    state.update(b"".join(token.to_bytes(4, "big") for token in tokens))
    return state.digest()


def _cut(digest: bytes, bits: int) -> bytes:
    """Return the first `bits` bits of a digest, as a number in whole bytes."""
    number = int.from_bytes(digest, "big") >> (len(digest) * 8 - bits)
    return number.to_bytes(-(-bits // 8), "big")

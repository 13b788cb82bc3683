"""Violation: what the sanitizer has found, in the terms of whoever must mend it."""

from dataclasses import dataclass

# Rule -> the invariant of a sound engine that it guards.
INVARIANTS = {
    "KVA901": "I5 each slot that is read was written by its reader or its verified prefix",
    "KVA902": "I3 and I7 nothing is read that was not filled since the page was reserved",
    "KVA903": "I6 a slot is read at its own position, under its own tokens, model, adapter, salt",
    "KVA904": "I2 and I3 tokens sent = tokens reserved = length that is read",
    "KVA905": "I3 the bytes that arrived are those that were sent",
    "KVA906": "I4 nobody writes into a page that he does not hold",
    "KVA907": "I7 what was poisoned when its page was freed reaches no answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken invariant.

    Attributes:
        rule_id: KVA901 to KVA907.
        role: Where: `prefill` or `decode`.
        request_id, tenant: The request that was about to read, write or commit; tenant None = not
            known.
        owner_id, owner_tenant: Who last wrote the slot; None = nobody, or not known.
        page, slot: Where it lies; slot = page * page_size + offset; None for a whole hand-off.
        position: The position that the slot stands for; None for a whole hand-off.
        token_index: The first output token of the request that would have left contaminated.
        detail: What was found there, in a few words.
    """

    rule_id: str
    role: str
    request_id: str
    tenant: str | None
    owner_id: str | None
    owner_tenant: str | None
    page: int | None
    slot: int | None
    position: int | None
    token_index: int
    detail: str

    @property
    def invariant(self) -> str:
        """The invariant that is broken."""
        return INVARIANTS[self.rule_id]

    def sentence(self) -> str:
        """Return all of it in one line."""
        where = "" if self.slot is None else f" page {self.page} slot {self.slot}"
        where += "" if self.position is None else f" position {self.position}"
        owner = _named(self.owner_id, self.owner_tenant) if self.owner_id is not None else "nobody"
        return (
            f"{self.rule_id} {self.role}{where}: {self.detail}; request"
            f" {_named(self.request_id, self.tenant)}; last written by {owner}; before output token"
            f" {self.token_index}; {self.invariant}"
        )


def _named(request_id: str, tenant: str | None) -> str:
    return f"`{request_id}`" if tenant is None else f"`{request_id}` of tenant {tenant}"

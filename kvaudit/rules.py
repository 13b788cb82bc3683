"""The rule catalogue: stable ids, one list by hand, one docs page each.

`is_built` tells whether this version has a detector; a rule is built only with its test pair, one
case that must fire and one look-alike that must not. Hazard rules (KVA7xx) are a family of ids
whose members live beside their detectors.
"""

from collections.abc import Iterable

from kvaudit.errors import UnknownNameError
from kvaudit.findings import Family, Kind, Rule, Severity

_AUDIT_AND_LOGS = frozenset("ab")
_AUDIT = frozenset("a")
_LOGS = frozenset("b")
_ENGINE = frozenset({"engine"})


def _rule(
    rule_id: str,
    name: str,
    summary: str,
    kind: Kind,
    severity: Severity,
    *,
    sees: frozenset[str] = _AUDIT_AND_LOGS,
    family: Family | None = None,
    is_built: bool = False,
    source: str = "",
) -> Rule:
    return Rule(
        id=rule_id, name=name, summary=summary, kind=kind, severity=severity, sees=sees,
        family=family, is_built=is_built, source=source,
    )  # fmt: skip


RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        _rule("KVA101", "foreign-canary", "Another tenant's canary stands unchanged in the answer.",
              Kind.EXPOSURE, Severity.CRITICAL, is_built=True,
              source="canary exposure: Carlini et al., The Secret Sharer, 2019"),
        _rule("KVA102", "foreign-canary-folded",
              "Another tenant's canary stands in the answer after folding case, spacing, masking, "
              "spelling or 1-2 edits.",
              Kind.EXPOSURE, Severity.CRITICAL, is_built=True),
        _rule("KVA201", "foreign-run",
              "Distinctive text of another tenant's earlier or concurrent request stands in the "
              "answer and not in the own context.",
              Kind.EXPOSURE, Severity.CRITICAL, is_built=True,
              source="winnowing guarantee: Schleimer et al., SIGMOD 2003"),
        _rule("KVA202", "foreign-reply", "The answer shares a run with another tenant's answer.",
              Kind.EXPOSURE, Severity.ERROR, sees=_LOGS, is_built=True),
        _rule("KVA203", "same-reply", "Different prompts got the same reply.",
              Kind.MISDELIVERY, Severity.ERROR,
              source="MinHash: Broder 1997; LSH: Leskovec et al., Mining of Massive Datasets",
              is_built=True),
        _rule("KVA204", "answers-other-prompt",
              "The answer fits another tenant's prompt better than its own.",
              Kind.MISDELIVERY, Severity.ERROR, sees=_LOGS, is_built=True),
        _rule("KVA205", "schema-bleed",
              "JSON keys, tool names or argument values of another tenant stand in the answer.",
              Kind.EXPOSURE, Severity.ERROR, sees=_LOGS, is_built=True),
        _rule("KVA301", "prompt-tokens-mismatch",
              "The server reports a prompt length far from the one that was sent.",
              Kind.ACCOUNTING, Severity.ERROR, family=Family.ACCOUNTING, is_built=True,
              source="sgl-project/sglang#30233"),
        _rule("KVA302", "over-capacity-answered",
              "A prompt longer than a pool can hold was answered with 200.",
              Kind.ACCOUNTING, Severity.ERROR, family=Family.ACCOUNTING, is_built=True,
              source="sgl-project/sglang#30233"),
        _rule("KVA303", "first-token-too-early",
              "The first token came before the uncached prompt can have been read.",
              Kind.ACCOUNTING, Severity.ERROR, family=Family.TIMING, is_built=True),
        _rule("KVA304", "cache-hit-never-sent",
              "Tokens were served from a cache on a prefix that this tenant never sent.",
              Kind.SHARING, Severity.WARNING, source="CVE-2025-46570", is_built=True),
        _rule("KVA305", "leg-mismatch",
              "The prefill and decode legs of one request disagree on its length.",
              Kind.ACCOUNTING, Severity.ERROR, sees=_LOGS, family=Family.ACCOUNTING, is_built=True),
        _rule("KVA306", "short-transfer", "Fewer KV bytes were transferred than the prompt needs.",
              Kind.ACCOUNTING, Severity.ERROR, sees=_LOGS, family=Family.ACCOUNTING, is_built=True),
        _rule("KVA401", "own-nonce-lost",
              "The answer lacks the value that the own prompt holds and asks for.",
              Kind.CORRUPTION, Severity.ERROR, sees=_AUDIT, family=Family.RECALL, is_built=True),
        _rule("KVA402", "repetition-loop", "The answer repeats itself.",
              Kind.CORRUPTION, Severity.WARNING, is_built=True),
        _rule("KVA403", "token-salad", "The answer is no language that was asked for.",
              Kind.CORRUPTION, Severity.WARNING, is_built=True),
        _rule("KVA404", "one-character-run", "The answer is a run of one character.",
              Kind.CORRUPTION, Severity.WARNING, is_built=True),
        _rule("KVA405", "empty-answer", "Tokens were spent and no text came.",
              Kind.CORRUPTION, Severity.WARNING, is_built=True),
        _rule("KVA406", "alone-and-in-company",
              "A known answer is right alone and wrong in company.",
              Kind.CORRUPTION, Severity.ERROR, sees=_AUDIT, family=Family.RECALL, is_built=True),
        _rule("KVA407", "first-token-ignores-prompt",
              "Unrelated prompts get the same first token.",
              Kind.CORRUPTION, Severity.ERROR, sees=_AUDIT, family=Family.RECALL, is_built=True),
        _rule("KVA408", "replay-gap",
              "Log-probabilities recorded while generating differ from those of the same tokens "
              "under the prompt really sent.",
              Kind.CORRUPTION, Severity.ERROR, sees=_AUDIT, family=Family.REPLAY, is_built=True),
        _rule("KVA501", "id-alive-twice", "One id was alive for two bodies.",
              Kind.ACCOUNTING, Severity.INFO, is_built=True),
        _rule("KVA502", "cache-headers", "An API reply carries the headers of a shared cache.",
              Kind.ACCOUNTING, Severity.INFO, is_built=True),
        _rule("KVA503", "owner-differs", "A retrieved item belongs to another owner.",
              Kind.ACCOUNTING, Severity.INFO, is_built=True),
        _rule("KVA601", "timing-reveals-prefix",
              "First-token time tells whether another tenant sent this prefix.",
              Kind.SHARING, Severity.WARNING, sees=_AUDIT, source="CVE-2025-46570",
              is_built=True),
        _rule("KVA701", "pool-below-context",
              "A role's KV pool is smaller than the advertised context, with roles apart.",
              Kind.HAZARD, Severity.CRITICAL, sees=frozenset("c"),
              is_built=True, source="sgl-project/sglang#30233"),
        _rule("KVA901", "foreign-slot-read",
              "A slot that another request wrote is about to be read.",
              Kind.CORRUPTION, Severity.CRITICAL, sees=_ENGINE, is_built=True,
              source="SGLang's kv_canary"),
        _rule("KVA902", "unfilled-slot-read",
              "A slot is about to be read that was not written since its page was given out.",
              Kind.CORRUPTION, Severity.CRITICAL, sees=_ENGINE, is_built=True,
              source="shadow memory: Serebryany et al., AddressSanitizer, 2012"),
        _rule("KVA903", "slot-identity-mismatch",
              "A slot holds another position, other tokens, or another model, adapter or salt.",
              Kind.CORRUPTION, Severity.ERROR, sees=_ENGINE, is_built=True,
              source="SGLang's kv_canary; CVE-2025-25183"),
        _rule("KVA904", "manifest-mismatch",
              "Tokens sent, arrived and reserved are not one number.",
              Kind.CORRUPTION, Severity.CRITICAL, sees=_ENGINE, is_built=True,
              source="sgl-project/sglang#38704"),
        _rule("KVA905", "transfer-bytes-differ",
              "Other bytes arrived than were sent.",
              Kind.CORRUPTION, Severity.ERROR, sees=_ENGINE, is_built=True,
              source="sgl-project/sglang#39500"),
        _rule("KVA906", "write-without-hold",
              "A page is written by a request that does not hold it.",
              Kind.CORRUPTION, Severity.CRITICAL, sees=_ENGINE, is_built=True,
              source="sgl-project/sglang#24527"),
        _rule("KVA907", "poison-read",
              "Keys and values that were poisoned when their page was freed reach a computation.",
              Kind.CORRUPTION, Severity.CRITICAL, sees=_ENGINE, is_built=True,
              source="poisoning: Serebryany et al., AddressSanitizer, 2012"),
    )
}  # fmt: skip


def families_text(rule_ids: Iterable[str]) -> str:
    """Return the families of some rules and their members, `accounting (KVA302), replay (KVA408)`.

    Rules of no family are left out.
    """
    members: dict[Family, list[str]] = {}
    for rule_id in sorted(set(rule_ids)):
        family = RULES[rule_id].family
        if family is not None:
            members.setdefault(family, []).append(rule_id)
    return ", ".join(
        f"{family.value} ({', '.join(members[family])})" for family in Family if family in members
    )


def rule(rule_id: str) -> Rule:
    """Return one rule; raises UnknownNameError with the nearest id."""
    try:
        return RULES[rule_id.upper()]
    except KeyError:
        raise UnknownNameError("rule", rule_id, RULES) from None

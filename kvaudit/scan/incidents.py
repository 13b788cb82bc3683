"""Findings of one leaked text told as one incident: MinHash over what was found in the answers.

Findings are never merged; each that names a source says in its details which incident it belongs
to. Two belong together when they have one source request, or when their texts are alike (Jaccard
similarity of 5-character shingles of at least .5; 32 bands of 4 rows propose such a pair with a
chance of .87, .9 and more above .52).
"""

from collections.abc import Sequence
from dataclasses import replace

from datasketch import MinHash, MinHashLSH

from kvaudit.detect.replies import MINHASH_SEED, NUM_PERM, jaccard, shingles_of
from kvaudit.findings import Finding

BANDS, ROWS = 32, 4
ALIKE_MIN = 0.5
COMPARED_MAX = 5_000  # findings beyond are joined by their source alone
SHINGLES_MIN = 8


def with_incidents(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings in their order, those with a source under the number of an incident."""
    parent = list(range(len(findings)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for first, second in (*_one_source(findings), *_alike(findings)):
        low, high = sorted((root(first), root(second)))
        parent[high] = low
    numbers: dict[int, int] = {}
    made = []
    for at, finding in enumerate(findings):
        if finding.evidence.source is None:
            made.append(finding)
            continue
        number = numbers.setdefault(root(at), len(numbers) + 1)
        details = {**finding.evidence.details, "incident": number}
        made.append(replace(finding, evidence=replace(finding.evidence, details=details)))
    return tuple(made)


def _one_source(findings: Sequence[Finding]) -> list[tuple[int, int]]:
    first: dict[tuple[str, str], int] = {}
    made = []
    for at, finding in enumerate(findings):
        source = finding.evidence.source
        if source is not None:
            made.append((first.setdefault((source.tenant, source.request_id), at), at))
    return made


def _alike(findings: Sequence[Finding]) -> list[tuple[int, int]]:
    index = MinHashLSH(num_perm=NUM_PERM, params=(BANDS, ROWS))
    held: dict[int, frozenset[str]] = {}
    made = []
    for at, finding in enumerate(findings[:COMPARED_MAX]):
        shingles = shingles_of(finding.evidence.excerpt)
        if finding.evidence.source is None or len(shingles) < SHINGLES_MIN:
            continue
        signature = MinHash(num_perm=NUM_PERM, seed=MINHASH_SEED)
        signature.update_batch([shingle.encode() for shingle in sorted(shingles)])
        near = sorted(index.query(signature))
        made += [(other, at) for other in near if jaccard(held[other], shingles) >= ALIKE_MIN]
        held[at] = shingles
        index.insert(at, signature)
    return made

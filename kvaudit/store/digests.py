"""Digests of a run's contents: of values, of tables in any order, of files.

Values are digested under a key that is made for one run, so that nobody without the run can try
out which text a digest belongs to. Files are digested with plain SHA-256, as `sha256sum` does.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvaudit.store.codec import to_json

DIGEST_BYTES = 16
_TABLE_BYTES = 32
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """What a table holds, whatever the order of its rows and the bytes of its file.

    Attributes:
        rows: Number of rows.
        digest: Sum of the digests of its rows modulo 2^256, in hex.
    """

    rows: int
    digest: str


def digest_key(secret: str) -> bytes:
    """Derive the key of a run's digests from its secret."""
    return hashlib.blake2b(secret.encode(), digest_size=32, person=b"kvaudit-digest").digest()


def value_digest(value: Any, key: bytes) -> str:
    """Return the keyed digest of a value: text, number, row, dataclass."""
    return hashlib.blake2b(_canonical_bytes(value), key=key, digest_size=DIGEST_BYTES).hexdigest()


def table_digest(rows: Iterable[Any], key: bytes) -> TableDigest:
    """Return the digest of a table's rows in any order."""
    total = count = 0
    for row in rows:
        made = hashlib.blake2b(_canonical_bytes(row), key=key, digest_size=_TABLE_BYTES).digest()
        total += int.from_bytes(made, "big")
        count += 1
    digest = (total % 2 ** (8 * _TABLE_BYTES)).to_bytes(_TABLE_BYTES, "big").hex()
    return TableDigest(rows=count, digest=digest)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            made.update(chunk)
    return made.hexdigest()


def canonical(value: Any) -> Any:
    """Return a value in the one form in which it is compared and digested.

    A number that is whole is an int, however its column spells it; a null in a row is left out.
    """
    return _plain(to_json(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(held) for key, held in value.items() if held is not None}
    if isinstance(value, list):
        return [_plain(held) for held in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)  # no type of ours: somebody else's column


def _canonical_bytes(value: Any) -> bytes:
    # ASCII escapes, so that even a lone surrogate has bytes.
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")

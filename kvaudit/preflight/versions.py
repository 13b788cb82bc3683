"""Versions of engines, ordered: development < alpha < beta < candidate < release < post-release.

A local part (`+cu128`) does not count, since it names a build of the same source. A llama.cpp
build such as `b4882` is its number. What is no version, such as `latest`, is None.
"""

import re
from dataclasses import dataclass

from kvaudit.errors import ConfigError

_VERSION = re.compile(
    r"(?P<release>\d{1,9}(?:\.\d{1,9}){1,5})"
    r"(?:[-_.]?(?P<pre>alpha|beta|preview|rc|pre|a|b|c)[-_.]?(?P<pre_number>\d{1,9})?)?"
    r"(?:[-_.]?(?P<post>post|rev)[-_.]?(?P<post_number>\d{1,9})?)?"
    r"(?:[-_.]?(?P<dev>dev)[-_.]?(?P<dev_number>\d{1,12})?)?"
    r"(?![\d.]*\d)(?:[+_.-][\w.+-]*)?",
    re.IGNORECASE | re.ASCII,
)
_BUILD = re.compile(r"b(?P<number>\d{3,9})(?:[-_][\w.-]*)?", re.IGNORECASE | re.ASCII)
_STAGE = {"a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "pre": 3, "preview": 3}
_DEVELOPMENT, _RELEASE = 0, 4
_LAST = 2**62
_BOUND = re.compile(r"(<=|>=|==|<|>)\s*(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Version:
    """One version; compares in the order of publication.

    Attributes:
        release: Numbers without trailing zeros.
        stage: Kind of pre-release and its number.
        post: Number of the post-release; -1 = none.
        dev: Number of the development version; the largest number = none.
    """

    release: tuple[int, ...]
    stage: tuple[int, int]
    post: int
    dev: int


def parse_version(text: str) -> Version | None:
    """Return the version that a text is; None when it is none."""
    said = text.strip()
    build = _BUILD.fullmatch(said)
    if build is not None:
        return Version(release=(int(build["number"]),), stage=(_RELEASE, 0), post=-1, dev=_LAST)
    said = said[1:] if said[:1] in ("v", "V") else said
    match = _VERSION.fullmatch(said)
    if match is None:
        return None
    release = [int(part) for part in match["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    stage = (_RELEASE, 0)
    if match["pre"]:
        stage = (_STAGE[match["pre"].lower()], int(match["pre_number"] or 0))
    elif match["dev"] and not match["post"]:
        stage = (_DEVELOPMENT, 0)
    return Version(
        release=tuple(release),
        stage=stage,
        post=int(match["post_number"] or 0) if match["post"] else -1,
        dev=int(match["dev_number"] or 0) if match["dev"] else _LAST,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Versions between bounds, all of which must hold.

    Attributes:
        bounds: Operator and version of each.
        text: As it was written.
    """

    bounds: tuple[tuple[str, Version], ...]
    text: str

    def holds(self, version: Version) -> bool:
        """Return whether a version lies in the range."""
        return all(compare(version, operator, bound) for operator, bound in self.bounds)


def parse_range(text: str) -> Range:
    """Return the range that `>=0.5.13,<=0.5.21` describes.

    Raises:
        ConfigError: It is none.
    """
    bounds = []
    for part in text.split(","):
        match = _BOUND.fullmatch(part.strip())
        version = parse_version(match[2]) if match else None
        if match is None or version is None:
            raise ConfigError(f"`{text}` is no range of versions", hint="write `>=0.5.13,<0.5.20`")
        bounds.append((match[1], version))
    return Range(bounds=tuple(bounds), text=text)


def compare(left: Version, operator: str, right: Version) -> bool:
    """Return whether `left operator right` holds."""
    return {
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right,
        "==": left == right, "!=": left != right,
    }[operator]  # fmt: skip

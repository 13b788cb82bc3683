"""What a preflight's finding says in the reports of others: the hazard, its fix, where it is told.

A hazard has no request and no chance of accident; it has a source that says what is to be started.
"""

import re
from urllib.parse import quote

from kvaudit.findings import AuditRun, Finding, Json, Kind
from reports import neutral


def is_hazard(finding: Finding) -> bool:
    """Return whether a finding is of a preflight."""
    return finding.kind is Kind.HAZARD


def hazard_name(finding: Finding) -> str:
    """Return the hazard's short name."""
    return neutral.name(_text(finding, "hazard"))


def hazard_summary(finding: Finding) -> str:
    """Return what the hazard is, in one sentence."""
    return neutral.sentence(_text(finding, "what"))


def hazard_sentence(finding: Finding) -> str:
    """Return what holds, for whom, what to do and where it is written."""
    details = finding.evidence.details
    band = details.get("exposed_band")
    parts = [hazard_summary(finding)]
    if isinstance(band, list) and len(band) == 2 and all(isinstance(edge, int) for edge in band):
        parts.append(f"Prompts of {band[0]:,} to {band[1] - 1:,} tokens are exposed.")
    roles = _texts(details.get("roles"))
    parts += [f"Found for {', '.join(map(neutral.name, roles))}."] if roles else []
    parts += [f"Leaks: {neutral.sentence(_text(finding, 'leaks'))}"]
    parts += [f"Fix: {neutral.sentence(_text(finding, 'fix'))}"]
    sources = _texts(details.get("sources"))
    parts += [f"See {', '.join(map(neutral.name, sources))}."] if sources else []
    return " ".join(parts)


def hazard_sources(finding: Finding) -> list[str]:
    """Return the URIs of the files or servers that say what is to be started, each once."""
    return list(dict.fromkeys(map(_uri, _texts(finding.evidence.details.get("said_by")))))


def open_questions(run: AuditRun) -> list[tuple[str, str]]:
    """Return what no source of a preflight tells though the verdict hangs on it, and what hangs."""
    unknown = run.target.get("unknown")
    gaps = [held for held in unknown if isinstance(held, dict)] if isinstance(unknown, list) else []
    return [
        (
            neutral.sentence(f"{gap.get('fact')} of {gap.get('role')}"),
            ", ".join(map(neutral.name, _texts(gap.get("hazards")))) or "everything",
        )
        for gap in gaps
        if gap.get("is_decisive")
    ]


def _uri(source: str) -> str:
    """Return a source without the place in it: `deploy/x.yaml, glm-prefill` is a file."""
    if re.match(r"https?://", source):
        return quote(re.sub(r"//[^/@]*@", "//", source), safe="/:%?=&[]")
    return quote(source.split(", ")[0], safe="/")


def _text(finding: Finding, name: str) -> str:
    value = finding.evidence.details.get(name)
    return value if isinstance(value, str) else ""


def _texts(value: Json) -> list[str]:
    return [str(held) for held in value] if isinstance(value, list) else []

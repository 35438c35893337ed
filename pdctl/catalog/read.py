"""Reads `codes.toml`: one typed entry a code, and the words of a finding made from its templates."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from pdctl import __version__
from pdctl_transfer.rules.outcome import Finding, Severity

DOCS_URL: Final = f"https://pdctl.readthedocs.io/en/v{__version__}/codes/"

#: What the digit after "PD" means, in the order in which reports show it.
SECTIONS: Final[Mapping[str, str]] = {
    "0": "fleet file and usage",
    "1": "layout",
    "2": "hosts and fabric",
    "3": "bring-up",
    "4": "transfer",
    "5": "accuracy",
}


_LOOK_ALIKE = str.maketrans("OIL", "011")


class CatalogEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the catalog says about one code. `message`, `why` and `action` are templates over a finding's params."""

    code: str
    title: str
    severity: Severity
    message: str
    why: str
    action: str
    seen: str | None = None
    retired: bool = False

    @property
    def docs(self) -> str:
        """The page of this code, in the documentation of this version."""
        return f"{DOCS_URL}{self.code}.html"

    @property
    def section(self) -> str:
        """The section of its first digit."""
        return section_of(self.code)

    def spoken(self, template: str) -> str:
        """One of the templates for a reader who has no finding: what varies is in capitals."""
        return template.format_map(_Capitals())


class Words(Struct, frozen=True):
    """A finding in words."""

    title: str
    severity: Severity
    message: str
    why: str
    action: str
    docs: str


class _Lenient(dict[str, Any]):
    """A param that a template names and a finding lacks stays visible; a report must never fail on it."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"


class _Capitals(dict[str, Any]):
    """`{port}` → `PORT`."""

    def __missing__(self, key: str) -> str:
        return key.upper()


def section_of(code: str) -> str:
    """`PD1001` → `layout`."""
    return SECTIONS.get(code[2:3], "other")


@cache
def entries() -> Mapping[str, CatalogEntry]:
    """Every code, in the order of the file, retired ones included."""
    return {code: msgspec.convert({"code": code, **fields}, CatalogEntry) for code, fields in _parse(_text()).items()}


def lookup(code: str) -> CatalogEntry:
    """The entry of a code. Raises KeyError for a code that the catalog does not have."""
    return _one(code.upper())


def nearest(text: str) -> tuple[str, ...]:
    """Codes that look like `text`, or whose title has its words: at most five, best first."""
    if re.search(r"\d", text):
        digits = re.sub(r"\D", "", text.upper().translate(_LOOK_ALIKE))
        matcher = SequenceMatcher(b=digits)
        scores: dict[str, float] = {}
        for code in entries():
            matcher.set_seq1(code[2:])
            scores[code] = matcher.ratio()
        close = sorted((code for code in scores if scores[code] > 0.7), key=lambda code: (-scores[code], code))
        return tuple(close[:5])
    wanted = re.findall(r"[a-z]{2,}", text.lower())
    return tuple(code for code, entry in entries().items() if wanted and all(w in entry.title for w in wanted))[:5]


def words(finding: Finding) -> Words:
    """The words of a finding, its severity from the catalog unless the rule says another."""
    entry = lookup(finding.code)
    params = _Lenient(finding.params)
    return Words(
        title=entry.title,
        severity=finding.severity or entry.severity,
        message=entry.message.format_map(params),
        why=entry.why.format_map(params),
        action=entry.action.format_map(params),
        docs=entry.docs,
    )


def _parse(text: str) -> dict[str, dict[str, Any]]:
    import tomllib

    return tomllib.loads(text)


@cache
def _text() -> str:
    return Path(__file__).with_name("codes.toml").read_text(encoding="utf-8")


@cache
def _one(code: str) -> CatalogEntry:
    """One table of the file, parsed alone: a check that finds something need not read a hundred others."""
    match = re.search(rf"^\[{re.escape(code)}\]\n(?:(?!\[PD).*\n?)*", _text(), re.MULTILINE)
    if match is None:
        raise KeyError(code)
    return msgspec.convert({"code": code, **_parse(match[0])[code]}, CatalogEntry)

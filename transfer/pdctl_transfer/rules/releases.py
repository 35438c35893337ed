"""Which release of an engine began to do what: data, read out of the releases themselves.

The tables of abilities are those of one release. What an older one could not do yet stands here with the release that
brought it; a side whose version nobody states is taken for the one that the tables were read in. What a release outside
of those that were read does is not known (decision 0026): rules that ask such a table then say so.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

_RELEASE = re.compile(r"v?(\d{1,6}(?:\.\d{1,6}){1,2})(?:\.post(\d{1,4}))?(?:\+[\w.]+)?")

Since = Mapping[tuple[str, str], str]

#: The oldest and the newest release that was read, by engine.
RANGES: Final[Mapping[str, tuple[str, str]]] = {
    "sglang": ("0.5.6", "0.5.23"),
    "vllm": ("0.24.0", "0.33.0"),
    "vllm-ascend": ("0.23.0", "0.23.0"),
}
SHOWN: Final[Mapping[str, str]] = {"sglang": "SGLang", "vllm": "vLLM", "vllm-ascend": "vLLM-Ascend"}

#: SGLang: kinds of state (a pattern) that a backend moves at all, and since which release.
MOVED: Final[Since] = {("*", "nixl"): "0.5.9", ("*", "mori"): "0.5.12"}
#: SGLang: kinds of state that a backend cuts anew for another attention TP, and since which release.
RESHAPED: Final[Since] = {
    ("mamba", "mooncake"): "0.5.9",
    ("mamba", "nixl"): "0.5.11",
    ("mamba", "mori"): "0.5.12",
    ("swa", "mooncake"): "0.5.22",
    ("swa", "nixl"): "0.5.22",
}


def release(version: str | None) -> tuple[int, ...] | None:
    """`0.5.16.post1` → (0, 5, 16, 1), as releases are ordered; None for nightlies, candidates and no version at all."""
    match = _RELEASE.fullmatch(version or "")
    if match is None:
        return None
    major, minor, patch = (*map(int, match[1].split(".")), 0)[:3]
    return major, minor, patch, int(match[2] or 0)


def brought_by(table: Since, kind: str, backend: str, *versions: str | None) -> str | None:
    """The release that brought it, where one of these versions is older than that; None where all have it."""
    for (pattern, name), since in table.items():
        if name == backend and fnmatchcase(kind, pattern):
            wanted = release(since)
            known = [found for version in versions if (found := release(version)) is not None]
            return since if wanted is not None and any(found < wanted for found in known) else None
    return None


def in_range(engine: str, version: str | None) -> bool:
    """Whether the version lies between the oldest and the newest release that was read."""
    found = release(version)
    oldest, newest = (release(bound) for bound in RANGES[engine])
    return found is not None and oldest is not None and newest is not None and oldest <= (*found[:3], 0) <= newest


def outside(engine: str, *versions: str | None) -> str | None:
    """Why tables of releases say nothing about one of these versions, in words; None where they do.

    A version that nobody states, or that is no release, is none of another range.
    """
    if engine not in RANGES:
        return None
    for version in versions:
        if release(version) is not None and not in_range(engine, version):
            first, last = RANGES[engine]
            return f"{SHOWN[engine]} {version} is none of the releases that were read ({first} to {last})"
    return None


def applies(since: str | None, until: str | None, *versions: str | None) -> bool:
    """Whether something that is so since one release, and until before another, is so for one of these versions.

    A version that nobody states is the one that tables were read in, where nothing has ended yet.
    """
    return any(_within(since, until, release(version)) for version in versions)


def _within(since: str | None, until: str | None, found: tuple[int, ...] | None) -> bool:
    if found is None:
        return until is None
    begun, ended = release(since), release(until)
    return (begun is None or found >= begun) and (ended is None or found < ended)

"""The table of what a release brought, against the facts that were read out of the releases."""

import json
from importlib.resources import files
from typing import Any

import pytest

from pdctl_transfer.rules.releases import MOVED, RESHAPED, brought_by, release

FACTS: dict[str, Any] = json.loads((files("pdctl.versions") / "releases.json").read_bytes())["sglang"]["facts"]


def _first(fact: str, wanted: str) -> str:
    """The first release read whose functions have this name in them."""
    return next(at for at, names in FACTS[fact].items() if any(wanted in name for name in names or ()))


@pytest.mark.parametrize(("state", "backend"), [key for key in RESHAPED if key[1] != "mori"])
def test_since_when_a_state_is_cut_anew(state: str, backend: str) -> None:
    """The function that cuts it is the evidence."""
    assert RESHAPED[state, backend] == _first(f"{backend}.state", f"_send_{state}_state_slice")


@pytest.mark.parametrize("backend", ["nixl", "mori"])
def test_since_when_state_is_moved_at_all(backend: str) -> None:
    """Mooncake moved it in the oldest release that was read, so it has no row."""
    assert MOVED["*", backend] == _first(f"{backend}.state", "_state")
    assert _first("mooncake.state", "_state") == next(iter(FACTS["mooncake.state"]))


def test_releases_are_ordered_by_number() -> None:
    """Not as texts; a post release follows its own, and what is no release has no place."""
    texts = ["0.5.9", "v0.5.10", "0.5.15", "0.5.15.post1", "0.5.16+cu129", "0.24.0", "1.0"]
    order = [release(text) for text in texts]
    assert None not in order
    assert order == sorted(order)  # type: ignore[type-var]
    assert [release(text) for text in ("nightly", "0.5.23rc1", "", None, "0.5.1.2.3", "5")] == [None] * 6


def test_the_older_side_decides_and_an_unknown_one_does_not() -> None:
    """One old side is enough; where nobody knows, the tables hold as they are."""
    ask = (RESHAPED, "swa", "nixl")
    assert brought_by(*ask, "0.5.23", "0.5.16") == "0.5.22"
    assert brought_by(*ask, "0.5.23", None) is None
    assert brought_by(*ask, None, "0.5.21") == "0.5.22"
    assert brought_by(RESHAPED, "kv", "nixl", "0.5.6") is None

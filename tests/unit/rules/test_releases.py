"""The table of what a release brought, against the facts that were read out of the releases."""

import json
from importlib.resources import files
from typing import Any

import pytest

from pdctl_transfer.rules.contracts import CONTRACTS
from pdctl_transfer.rules.refusals import REFUSALS
from pdctl_transfer.rules.releases import MOVED, RANGES, RESHAPED, applies, brought_by, outside, release

READ: dict[str, Any] = json.loads((files("pdctl.versions") / "releases.json").read_bytes())
FACTS = READ["sglang"]["facts"]


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


@pytest.mark.parametrize("engine", READ)
def test_the_range_is_what_was_read(engine: str) -> None:
    assert RANGES[engine] == (READ[engine]["read"][0], READ[engine]["read"][-1])


@pytest.mark.parametrize(
    ("since", "until", "versions", "wanted"),
    [
        (None, None, (None, None), True),
        ("0.29.0", None, ("0.28.0", "0.28.0"), False),
        ("0.29.0", None, ("0.28.0", "0.29.0"), True),
        ("0.29.0", None, (None, None), True),
        ("0.29.0", "0.30.0", ("0.29.0.post1", None), True),
        ("0.29.0", "0.30.0", ("0.30.0", None), False),
        (None, "0.30.0", (None, None), False),
    ],
)
def test_spans_of_releases(
    since: str | None, until: str | None, versions: tuple[str | None, ...], wanted: bool
) -> None:
    """From the first on and before the last; nobody's version is the one that tables were read in, which is later."""
    assert applies(since, until, *versions) == wanted


def test_outside_of_the_range_is_said_and_what_is_no_release_is_not() -> None:
    assert outside("vllm", "0.32.0", None, "nightly") is None
    assert outside("reference", "9.9.9") is None
    for version in ("0.23.0", "0.34.0", "1.0.0"):
        assert version in str(outside("vllm", "0.32.0", version))


def _when(engine: str, fact: str, phrase: str) -> tuple[str | None, str | None]:
    """The first release read that says this, and the first after that no longer does; None at the ends of the range."""
    seen = [(at, any(phrase in text for text in texts or ())) for at, texts in READ[engine]["facts"][fact].items()]
    first = next(place for place, (_, said) in enumerate(seen) if said)
    last = next((at for at, said in seen[first:] if not said), None)
    return (seen[first][0] if first else None), last


VLLM, SGLANG = ("vllm", "nixl.refuses"), ("sglang", "dcp.refuses")
EVIDENCE = {
    "_pull_pp_hybrid": (*VLLM, "NixlConnector (pull) does not support pipeline_parallel_size"),
    "_pp_hybrid": (*VLLM, "hybrid KV cache layouts (HMA) yet"),
    "_pp_consumer": (*VLLM, "consumer (decode) does not support pipeline_parallel_size"),
    "_push_stages_widen": (*VLLM, "push does not support decode TP greater"),
    "_pcp_consumer": (*VLLM, "PCP currently supports kv_producer only"),
    "_pcp_at_all": (*VLLM, "NIXL does not support prefill context parallelism"),
    "_pcp_with_dcp": (*VLLM, "PCP+DCP requires TP1"),
    "_pcp_dcp_apart": (*VLLM, "PCP producers currently require decode_context_parallel_size=1"),
    "_push_dcp": (*VLLM, "NixlPushConnector does not support decode_context_parallel_size"),
    "_dcp_spans": (*VLLM, "PD with decode_context_parallel_size > 1 is only supported for MLA"),
    "_dcp_recurrent": (*VLLM, "PD with decode_context_parallel_size > 1 is not supported for hybrid"),
    "_dcp_pair": (*VLLM, "DCP sizes must divide one another"),
    "_mori_heads": ("vllm", "mori.refuses", "heterogeneous TP requires replicated KV heads"),
    "_sglang_dcp_dsa": (*SGLANG, "DSA DCP does not support PD"),
    "_sglang_dcp_mla": (*SGLANG, "PD decode DCP requires an MLA"),
    "_sglang_dcp_prefill_cp": (*SGLANG, "requires prefill attention CP=1"),
    "_sglang_dcp_unequal": (*SGLANG, "Unsupported PD DCP topology"),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_a_refusal_holds_from_the_release_that_says_it_to_the_last_that_does(name: str) -> None:
    """By what the releases' own exceptions say: a row of another span than that is a row misread."""
    [row] = [row for row in REFUSALS if row.judge.__name__ == name]
    assert (row.since, row.until) == _when(*EVIDENCE[name])


def test_the_factors_of_the_handshake_are_those_of_each_release() -> None:
    """None missing and none too many in any release from the first that was read to the last."""
    [contract] = CONTRACTS
    of_drafts = {"method", "model", "revision", "code_revision", "parallel_drafting", "kv_cache_dtype"}
    of_drafts |= {"auxiliary_layer_ids"}
    seen: set[str] = set()
    for version in READ["vllm"]["read"]:
        seen = set(READ["vllm"]["facts"]["nixl.hash.factors"].get(version, seen))
        modelled = {one.named for one in contract.factors if applies(one.since, one.until, version)}
        assert modelled == (seen - of_drafts) | {"model"}, version

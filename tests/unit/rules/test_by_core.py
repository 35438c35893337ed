"""Rules by the way that a pair takes: what only the engine's own transfer cannot do is not asked of the core."""

from typing import Any

import pytest
from msgspec import structs

from pdctl_transfer.rules import Finding, Held, Pair, judge
from tests.unit.rules.build import findings, kv, mamba, manifest, pair, state


def by_core(judged: Pair) -> Pair:
    return structs.replace(judged, core=True)


def sides(tp: tuple[int, int] = (1, 2), **changes: Any) -> Pair:
    parts = changes.pop("parts", lambda size: (kv(size, range(4)),))
    made = [
        manifest(role, size, parts=parts(size), **changes) for role, size in zip(("prefill", "decode"), tp, strict=True)
    ]
    return pair(*made)


def test_a_flat_slice_is_the_engines_own() -> None:
    judged = sides(parts=lambda tp: (kv(tp, range(4)), mamba(tp, range(4), flat=True)))
    assert "PD1016" in findings(judged)
    assert findings(by_core(judged)) == {}
    said = [one.saw for one in judge(by_core(judged)) if isinstance(one, Held) and one.rule == "flat_slices"]
    assert "part by part" in said[0]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"backend": "mori", "parts": lambda tp: (kv(tp, range(4)), state("swa", tp, range(4)))}, "PD1005"),
        (
            {"version": "0.5.8", "backend": "nixl", "parts": lambda tp: (kv(tp, range(4)), mamba(tp, range(4)))},
            "PD1047",
        ),
    ],
)
def test_what_a_backend_cannot_cut_or_carry_is_its_own(changes: dict[str, Any], code: str) -> None:
    judged = sides(**changes)
    assert code in findings(judged)
    assert code not in findings(by_core(judged))


def test_heads_that_lie_on_several_ranks_are_nixls_matter() -> None:
    vllm = {"engine": "vllm", "version": "0.32.0", "backend": "nixl"}
    judged = sides((16, 8), **vllm)
    assert "PD1005" in findings(judged)
    assert "PD1005" not in findings(by_core(judged))


def test_our_connector_on_both_sides_is_the_core_whatever_carries_its_bytes() -> None:
    """A running vLLM states its connector, and the library under it as its backend."""
    vllm = {"engine": "vllm", "version": "0.32.0", "backend": "nixl"}
    ours = {**vllm, "settings": {"connector": "PdctlConnector"}}
    one, two = (manifest(role, tp, parts=(kv(tp, range(4)),), **ours) for role, tp in (("prefill", 16), ("decode", 8)))
    judged = pair(one, two)
    assert (judged.by_core, judged.backend) == (True, "pdctl")
    assert findings(judged) == {}
    mixed = pair(one, manifest("decode", 8, parts=(kv(8, range(4)),), **vllm))
    assert (mixed.by_core, mixed.backend) == (False, "nixl")


@pytest.mark.code("PD1061")
@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"backend": "mori"}, "rides on mooncake"),
        ({"version": "0.5.22"}, "made for 0.5.23"),
        ({"settings": {"dcp": 2}}, "decode context parallelism 2 → 2"),
        ({"parts": lambda tp: (kv(tp, range(4)), state("dsa_tail", tp, range(4)))}, "dsa_tail"),
    ],
)
def test_what_the_core_does_not_carry(changes: dict[str, Any], word: str) -> None:
    judged = sides((2, 2), **changes)
    assert "PD1061" not in findings(judged)
    assert word in findings(by_core(judged))["PD1061"].params["what"]


VLLM: dict[str, Any] = {"engine": "vllm", "version": "0.32.0+cpu", "backend": "nixl"}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"kv_cache_dtype": "fp8_ds_mla"}, "fp8_ds_mla"),
        ({"parts": lambda tp: (kv(tp, range(4)), state("dsa", tp, range(4)))}, "dsa"),
        ({"version": "0.31.0"}, "made for 0.32.0"),
    ],
)
def test_what_our_connector_of_vllm_leaves_to_nixls(changes: dict[str, Any], word: str) -> None:
    judged = by_core(sides((2, 2), **{**VLLM, **changes}))
    assert word in findings(judged)["PD1061"].params["what"]


def test_block_tables_of_one_kind_are_of_that_kind() -> None:
    def parts(tp: int) -> Any:
        return kv(tp, range(4)), structs.replace(mamba(tp, range(4)), kind="mamba/1")

    assert "PD1061" not in findings(by_core(sides(parts=parts, **VLLM)))


def test_the_model_is_one_on_either_way() -> None:
    """What is true of the pair whoever carries: sizes of pages, types, what both sides hold."""
    one, two = manifest("prefill"), manifest("decode", page_size=32, parts=(kv(1, range(4), page=32),))
    for judged in (pair(one, two), by_core(pair(one, two))):
        assert "PD1001" in findings(judged)
    lone = pair(manifest("prefill", parts=(kv(1, range(4)), mamba(1, range(4)))), manifest("decode"))
    found = [one.code for one in judge(by_core(lone)) if isinstance(one, Finding)]
    assert "PD1007" in found

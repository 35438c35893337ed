"""Verdicts on unequal attention TP: the table of backends, state by state, both ways."""

import pytest

from pdctl.catalog import words
from pdctl_transfer.layout.manifest import Component, Stage
from pdctl_transfer.rules import Pair
from tests.unit.rules.build import PAGE, both, findings, kv, mamba, manifest, mla, pair, qsa, state

Y, N, W, I = None, "error", "warning", "info"  # noqa: E741  yes, refused, not established, needs published dimensions


def swa(tp: int, nhd: bool = True) -> Component:
    """A sliding-window pool in one page order or the other."""
    shape = {"page": PAGE} if nhd else {"page": 1, "inner": PAGE * 256}
    return Component("swa", "window_page", kv(tp, range(4), **shape).entries)


TABLE = {
    "gqa kv": (lambda tp: (kv(tp, range(4), heads=2),), Y, Y, Y, W),
    "split mamba": (lambda tp: (kv(tp, range(4)), mamba(tp, range(4))), Y, Y, I, W),
    "ple short conv": (lambda tp: (kv(tp, range(4)), mamba(tp, range(4), ple=True)), Y, N, N, W),
    "n-gram": (lambda tp: (kv(tp, range(4)), mamba(tp, range(4), ngram=True)), Y, N, N, W),
    "qsa": (lambda tp: (kv(tp, range(4)), *qsa(tp, range(4))), Y, N, N, W),
    "swa": (lambda tp: (kv(tp, range(4)), swa(tp)), Y, Y, N, W),
    "swa hnd": (lambda tp: (kv(tp, range(4)), swa(tp, nhd=False)), N, N, N, W),
    "minimax": (lambda tp: (kv(tp, range(4)), state("minimax_index_k", tp, range(4))), N, N, N, W),
    "block scale": (lambda tp: (kv(tp, range(4)), state("block_scale_swa", tp, range(4))), N, N, W, W),
    "swa ring": (lambda tp: (kv(tp, range(4)), state("swa_ring", tp, range(4))), N, N, W, W),
    "request row": (lambda tp: (kv(tp, range(4)), state("request_row", tp, range(4))), N, N, W, W),
    "a kind nobody has read": (lambda tp: (kv(tp, range(4)), state("new_kind", tp, range(4))), W, W, W, W),
    "mla": (lambda tp: (mla(range(4)),), Y, Y, Y, Y),
    "mla with dsa index": (lambda tp: (mla(range(4)), state("dsa", tp, range(4))), Y, Y, Y, Y),
    "mla with replicated mamba": (lambda tp: (mla(range(4)), mamba(tp, range(4), ple=True)), Y, N, N, W),
    "mla with kda": (lambda tp: (mla(range(4)), mamba(tp, range(4))), Y, Y, I, W),
}


@pytest.mark.code("PD1005", "PD1023")
@pytest.mark.parametrize("tp", [(4, 1), (1, 4), (4, 2)])
@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("state", TABLE)
def test_table(state: str, column: int, tp: tuple[int, int]) -> None:
    """mooncake, nixl, mori, ascend; refused is an error, not established a warning."""
    parts, *expected = TABLE[state]
    backend = ("mooncake", "nixl", "mori", "ascend")[column]
    found = {code: words(finding).severity for code, finding in findings(both(tp, backend, parts=parts)).items()}
    assert found == {Y: {}, N: {"PD1005": N}, W: {"PD1005": W}, I: {"PD1023": I}}[expected[column]]


@pytest.mark.code("PD1029")
@pytest.mark.parametrize("state", TABLE)
@pytest.mark.parametrize("backend", ["mooncake", "nixl", "mori", "ascend"])
def test_equal_tp_asks_only_that_the_state_is_known(state: str, backend: str) -> None:
    """Nobody is warned who does not reshape; but mori's send path lists its kinds, and raises for others."""
    unlisted = backend == "mori" and state in ("block scale", "request row", "a kind nobody has read")
    found = {
        code: words(finding).severity
        for code, finding in findings(both((4, 4), backend, parts=TABLE[state][0])).items()
    }
    assert found == ({"PD1029": "warning"} if unlisted else {})


def test_the_reference_engine_reshapes_everything() -> None:
    """It plans every copy; also where neither TP divides the other."""
    for parts, *_ in TABLE.values():
        assert findings(both((4, 1), engine="reference", backend="mooncake", parts=parts)) == {}


@pytest.mark.code("PD1005")
def test_vllm_was_tried_with_dense_models_over_nixl() -> None:
    """Anything else is said not to be established; MLA's replicated KV is no reshaping."""

    def severity(parts: object, backend: str) -> str | None:
        found = findings(both((1, 2), backend, engine="vllm", version="0.32.0", parts=parts))
        return words(found["PD1005"]).severity if found else None

    assert severity(TABLE["gqa kv"][0], "nixl") is None
    assert severity(TABLE["gqa kv"][0], "mooncake") == "warning"
    assert severity(TABLE["split mamba"][0], "nixl") == "warning"
    assert severity(TABLE["mla"][0], "mooncake") is None


@pytest.mark.code("PD1005", "PD1012")
def test_swa_with_several_prefill_stages() -> None:
    """NHD pages and prefill PP 1 only."""

    def stages(tp: int, count: int) -> tuple[Stage, ...]:
        step = 4 // count
        pools = (
            Component("swa", "window_page", kv(tp, range(i * step, (i + 1) * step)).entries, engine_pairs="position")
            for i in range(count)
        )
        return tuple(Stage(i, (i * step, (i + 1) * step), (pool,)) for i, pool in enumerate(pools))

    judged = pair(manifest("prefill", 4, stages=stages(4, 2)), manifest("decode", 2, stages=stages(2, 1)))
    assert set(findings(judged)) == {"PD1005", "PD1012"}


def test_the_message_names_the_states_and_both_sizes() -> None:
    """An operator reads which state refuses, not only that one does."""
    judged: Pair = both((4, 1), "nixl", parts=TABLE["qsa"][0])
    message = words(findings(judged)["PD1005"]).message
    assert message == "attention TP 4 → 1 on sglang with nixl: qsa_compressed, qsa_pending are refused"

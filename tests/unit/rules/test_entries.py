"""Rules over the entries of the two sides, one state type at a time."""

import msgspec
import pytest

from pdctl.catalog import words
from pdctl_transfer.layout.manifest import Component, Manifest, Stage
from pdctl_transfer.rules import Pair
from tests.unit.rules.build import both, entry, findings, found, kv, mamba, manifest, mla, pair, qsa, skips, state


def _severities(judged: Pair) -> dict[str, str]:
    return {code: words(finding).severity for code, finding in findings(judged).items()}


def _one_stage(role: str, *parts: Component, tp: int = 1, layers: int = 4, **changes: object) -> Manifest:
    return manifest(role, tp, stages=(Stage(0, (0, layers), parts),), **changes)


@pytest.mark.code("PD1021")
def test_a_manifest_that_contradicts_itself() -> None:
    """The entry rules are skipped and say why; the settings are still judged."""
    wrong = manifest("prefill", page_size=0)
    judged = pair(wrong)
    assert _severities(judged) == {"PD1021": "error", "PD1001": "error"}
    assert "PD1021" in skips(judged)["splits"].reason
    assert "page_size" in words(findings(judged)["PD1021"]).message


@pytest.mark.code("PD1032")
def test_state_addressed_by_another_kind_of_index() -> None:
    """One slot a request on prefill, pages on decode: the id lists cannot have one length."""
    paged = msgspec.structs.replace(mamba(1, range(4)), index_space="page")
    judged = pair(_one_stage("prefill", mamba(1, range(4))), _one_stage("decode", paged))
    assert _severities(judged) == {"PD1032": "error"}


@pytest.mark.code("PD1004")
def test_heads_that_do_not_split() -> None:
    """Six heads over four ranks give nobody whole heads."""
    judged = both((4, 4), parts=lambda tp: (kv(tp, range(4), heads=6),))
    assert [(f.code, f.subject) for f in found(judged)] == [("PD1004", "prefill"), ("PD1004", "decode")]


@pytest.mark.code("PD1004")
@pytest.mark.parametrize(("engine", "refused"), [("sglang", True), ("vllm", True), ("reference", False)])
def test_ranks_that_do_not_divide(engine: str, refused: bool) -> None:
    """6 → 4 pairs on the reference engine only."""
    judged = both((6, 4), engine=engine, parts=lambda tp: (mla(range(4)),))
    assert ("PD1004" in findings(judged)) is refused


@pytest.mark.code("PD1004")
def test_mamba2_groups_that_sglang_does_not_start_with() -> None:
    """Two B/C groups over four ranks are a legal layout (copies), but the engine refuses to start."""
    judged = pair(
        _one_stage("prefill", mamba(4, range(4), flat=True, groups=2), tp=4),
        _one_stage("decode", mamba(2, range(4), flat=True, groups=2), tp=2),
    )
    assert set(findings(judged)) == {"PD1004", "PD1016"}
    reference = both((4, 4), engine="reference", parts=lambda tp: (mamba(tp, range(4), flat=True, groups=2),))
    assert findings(reference) == {}


@pytest.mark.code("PD1016")
def test_a_flat_cut_across_unequal_tp() -> None:
    """Equal TP is sound; groups are sound at any TP."""
    for flat, tp, codes in [(True, (2, 1), {"PD1016"}), (True, (2, 2), set()), (False, (2, 1), set())]:
        judged = both(tp, parts=lambda tp, flat=flat: (mamba(tp, range(4), flat=flat, groups=8),))
        assert set(findings(judged)) == codes


@pytest.mark.code("PD1019")
def test_page_size_and_compression_ratio() -> None:
    """A page must end where a compression group ends."""
    parts = (*qsa(1, range(4), page=40),)
    sides = [_one_stage(role, *parts, page_size=40) for role in ("prefill", "decode")]
    wrong = found(pair(*sides))
    assert [(f.code, f.subject) for f in wrong] == [("PD1019", "prefill"), ("PD1019", "decode")]
    assert words(wrong[0]).message == "prefill: page size 40 is not a multiple of the compression ratio 16"


@pytest.mark.code("PD1007")
def test_a_kind_that_decode_lacks_is_one_finding() -> None:
    """Not one for each of its entries, and not also a missing partner."""
    judged = pair(_one_stage("prefill", kv(1, range(4)), mamba(1, range(4))), _one_stage("decode", kv(1, range(4))))
    assert _severities(judged) == {"PD1007": "error"}
    assert "mamba is on prefill (8 entries), decode has none" in words(findings(judged)["PD1007"]).message


@pytest.mark.code("PD1007")
def test_a_kind_or_an_entry_that_prefill_lacks() -> None:
    """Decode would continue from memory that nobody filled."""
    judged = pair(_one_stage("prefill", kv(1, range(4))), _one_stage("decode", kv(1, range(4)), mamba(1, range(4))))
    assert set(findings(judged)) == {"PD1007"}
    judged = pair(_one_stage("prefill", kv(1, range(3))), _one_stage("decode", kv(1, range(4))))
    assert set(findings(judged)) == {"PD1007"}
    assert "layer 3 k, layer 3 v" in words(findings(judged)["PD1007"]).message


@pytest.mark.code("PD1009")
def test_a_prefill_entry_without_a_place() -> None:
    """Of a kind that decode does have."""
    judged = pair(_one_stage("prefill", kv(1, range(4))), _one_stage("decode", kv(1, range(3))))
    assert _severities(judged) == {"PD1009": "error"}


def test_empty_components_are_a_no_op() -> None:
    """A stage without a sparse layer registers an empty component; so may a whole side."""
    empty = Component("qsa_pending", "row", ())
    stages = (Stage(0, (0, 2), (kv(1, range(2)), empty)), Stage(1, (2, 4), (kv(1, range(2, 4)), *qsa(1, range(3, 4)))))
    judged = pair(manifest("prefill", stages=stages), _one_stage("decode", kv(1, range(4)), *qsa(1, range(3, 4))))
    assert findings(judged) == {}
    assert findings(pair(_one_stage("prefill", kv(1, range(4)), empty))) == {}


@pytest.mark.code("PD1018")
def test_decode_without_ngram_context() -> None:
    """Its own code, not a missing partner."""
    judged = pair(
        _one_stage("prefill", mamba(1, range(4), ngram=True)),
        _one_stage("decode", mamba(1, range(4))),
    )
    assert _severities(judged) == {"PD1018": "error"}
    assert "(16 bytes a request)" in words(findings(judged)["PD1018"]).message


@pytest.mark.code("PD1008")
def test_slot_lengths_that_differ() -> None:
    """A state dtype on one side only: the copy would run into the next request's slot."""
    wide = Component("mamba", "slot", tuple(entry(n, "temporal", 1, (32, 1), inner=2048) for n in range(4)))
    narrow = Component("mamba", "slot", tuple(entry(n, "temporal", 1, (32, 1), inner=1024) for n in range(4)))
    judged = pair(_one_stage("prefill", wide), _one_stage("decode", narrow))
    assert _severities(judged) == {"PD1008": "error"}
    assert (
        "65536 bytes an item on prefill, 32768 on decode (layers 0, 1, 2, 3)"
        in words(findings(judged)["PD1008"]).message
    )


@pytest.mark.code("PD1008")
def test_a_placeholder_on_one_side_only() -> None:
    """Both sides must agree on which layers share another's index."""
    full = Component(
        "dsa", "page", tuple(entry(n, "index_k", 1, (1, 1), sharding="replicated", inner=8448) for n in (0, 1))
    )
    shared = msgspec.structs.replace(full.entries[1], inner_bytes=0, item_len=0)
    part = Component("dsa", "page", (full.entries[0], shared))
    assert set(findings(pair(_one_stage("prefill", full), _one_stage("decode", part)))) == {"PD1008"}
    assert findings(pair(_one_stage("prefill", part), _one_stage("decode", part))) == {}


@pytest.mark.code("PD1010")
def test_ids_for_some_entries_only() -> None:
    """The pairing would shift."""
    bare = Component("kv", "page", (*kv(1, range(3)).entries, entry(None, "k", 1, (8, 1), outer=64, inner=256)))
    judged = pair(_one_stage("prefill", bare))
    assert _severities(judged) == {"PD1010": "error"}


@pytest.mark.code("PD1010")
def test_buffer_groups_that_do_not_divide() -> None:
    """Layer 3 once, the others twice: a number of buffers that is no multiple of the layers."""
    latents = mla(range(4), groups=2).entries[:-1]
    judged = pair(
        _one_stage("prefill", Component("kv", "page", latents)), _one_stage("decode", mla(range(4), groups=2))
    )
    assert _severities(judged) == {"PD1010": "error"}
    assert findings(both(parts=lambda tp: (mla(range(4), groups=2),))) == {}


@pytest.mark.code("PD1012")
def test_positions_over_several_stages() -> None:
    """Hybrid MLA with prefill PP 2 and no ids: stage 2's first layer would land on stage 1's."""

    def bare(layers: range) -> Component:
        return Component("kv", "page", tuple(msgspec.structs.replace(e, layer=None) for e in mla(layers).entries))

    stages = (Stage(0, (0, 2), (bare(range(2)),)), Stage(1, (2, 4), (bare(range(2)),)))
    judged = pair(manifest("prefill", stages=stages), _one_stage("decode", bare(range(4))))
    assert _severities(judged) == {"PD1012": "error"}
    single = pair(_one_stage("prefill", bare(range(4))), _one_stage("decode", bare(range(4))))
    assert findings(single) == {}


@pytest.mark.code("PD1012")
def test_an_engine_that_pairs_by_position_even_with_ids() -> None:
    """SGLang's sliding-window pools with prefill PP 2."""

    def swa(layers: range) -> Component:
        return Component("swa", "window_page", kv(1, layers).entries, engine_pairs="position")

    stages = (Stage(0, (0, 2), (swa(range(2)),)), Stage(1, (2, 4), (swa(range(2, 4)),)))
    judged = pair(manifest("prefill", stages=stages), _one_stage("decode", swa(range(4))))
    assert _severities(judged) == {"PD1012": "error"}
    whole = _one_stage("prefill", swa(range(4)))
    assert findings(pair(whole, _one_stage("decode", swa(range(4))))) == {}
    turned = Component("swa", "window_page", swa(range(4)).entries[::-1], engine_pairs="position")
    judged = pair(whole, _one_stage("decode", turned))
    assert _severities(judged) == {"PD1012": "error"}
    assert "layer 0 k on prefill and layer 3 v on decode" in words(findings(judged)["PD1012"]).message


@pytest.mark.code("PD1020")
def test_stages_that_register_layers_they_do_not_compute() -> None:
    """Nemotron-H with PP: each stage sends all layers over what another one filled."""
    stages = tuple(Stage(i, (2 * i, 2 * i + 2), (mamba(1, range(4)),)) for i in range(2))
    sides = [("sglang", {"PD1020": "error"}), ("reference", {})]
    for engine, expected in sides:
        judged = pair(
            manifest("prefill", stages=stages, engine=engine), _one_stage("decode", mamba(1, range(4)), engine=engine)
        )
        assert {f.code: words(f).severity for f in found(judged)} == expected


@pytest.mark.code("PD1015")
def test_draft_entries() -> None:
    """Layers from num_hidden_layers on: on decode alone they are filled there; another shape is an error."""
    draft = kv(1, range(4, 5), heads=8)
    wide = kv(1, range(4, 5), heads=4)
    spec = {"speculative": {"algorithm": "EAGLE"}}

    def with_draft(role: str, part: Component | None, speculative: bool) -> Manifest:
        entries = kv(1, range(4)).entries + (part.entries if part else ())
        return _one_stage(role, Component("kv", "page", entries), **(spec if speculative else {}))

    decode_only = pair(with_draft("prefill", None, False), with_draft("decode", draft, True))
    assert _severities(decode_only) == {"PD1015": "info"}
    prefill_only = pair(with_draft("prefill", draft, True), with_draft("decode", None, False))
    assert _severities(prefill_only) == {"PD1015": "error"}
    other_shape = pair(with_draft("prefill", draft, True), with_draft("decode", wide, True))
    assert _severities(other_shape) == {"PD1015": "error"}
    assert findings(pair(with_draft("prefill", draft, True), with_draft("decode", draft, True))) == {}


@pytest.mark.code("PD1006")
def test_state_that_cannot_travel_between_stages() -> None:
    """QSA over mori's protocol, which carries no ids; MiniMax state anywhere."""

    def stages(kind: str) -> tuple[Stage, ...]:
        return tuple(Stage(i, (2 * i, 2 * i + 2), (state(kind, 1, range(2 * i, 2 * i + 2)),)) for i in range(2))

    for kind, backend, refused in [
        ("qsa_pending", "mori", True),
        ("qsa_pending", "mooncake", False),
        ("qsa_pending", "nixl", False),
        ("minimax_index_k", "mooncake", True),
    ]:
        decode = _one_stage("decode", state(kind, 1, range(4)), page_size=64)
        assert ("PD1006" in findings(pair(manifest("prefill", stages=stages(kind)), decode, backend))) is refused

"""What holds for every plan, and how many copies a plan needs. Operations are counted, never timed."""

import dataclasses
from collections import Counter, defaultdict
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pdctl_transfer.errors import PlanError
from pdctl_transfer.layout.algebra import faults
from pdctl_transfer.layout.manifest import ROPE_RING_LAYER, Manifest, Parallel
from pdctl_transfer.layout.read import read_manifest
from pdctl_transfer.plan import Plan, RankId, make_plan, prove
from tests.unit.layout.build import PAGE, component, entry, groups, kv, manifest, replicated, single, stage
from tests.unit.layout.examples import EXAMPLES
from tests.unit.plan.layouts import Sides, sides

GDN = groups((16, 4), (16, 4), (32, 4))


def pair_of(part, prefill_tp: int, decode_tp: int) -> tuple[Manifest, Manifest]:
    return single("prefill", prefill_tp, part), single("decode", decode_tp, part)


def expand(plan: Plan) -> list[tuple[int, ...]]:
    """Every contiguous copy: (entry, prefill stage, rank, decode stage, rank, src offset, dst offset, length)."""
    out = []
    for row in zip(*plan.columns, strict=True):
        pair, *ranks, src, dst, length, count, src_stride, dst_stride, _ = (int(x) for x in row)
        out += [(pair, *ranks, src + j * src_stride, dst + j * dst_stride, length) for j in range(count)]
    return out


@settings(max_examples=200)
@given(sides())
def test_every_plan_passes_the_prover(pair: Sides):
    """And of equal copies one writes: what moves is exactly the items that have a partner, and none of them twice."""
    plan = make_plan(*pair)
    proof = prove(plan, *pair)
    assert proof.faults == ()
    assert proof.bytes == plan.stats.bytes


@settings(max_examples=60)
@given(sides())
def test_what_is_contiguous_on_both_sides_is_one_copy(pair: Sides):
    copies = expand(make_plan(*pair))
    ends = {(*ranks, src + length, dst + length) for *ranks, src, dst, length in copies}
    starts = {(*ranks, src, dst) for *ranks, src, dst, length in copies}
    assert not ends & starts


@settings(max_examples=60)
@given(sides())
def test_merging_keeps_every_piece_and_both_sides_agree_on_the_digest(pair: Sides):
    plan = make_plan(*pair)
    assert plan.stats.copies == len(expand(plan)) <= plan.stats.pieces
    assert plan.stats.bytes == sum(length for *_, length in expand(plan))
    again = make_plan(*(msgspec.json.decode(msgspec.json.encode(side), type=Manifest) for side in pair))
    assert again.digest == plan.digest


def test_the_digest_is_of_bytes_that_no_other_plan_has():
    """One changed field, or text that moved from one field into the next, is another plan; an equal plan has the same
    digest on every host and in every version, whatever a library thinks that its objects look like."""
    plan = make_plan(*pair_of(kv([0, 1], heads=2, page=4), 1, 2))
    assert plan.digest == "sha256:0a8d3bc15f6bec54b8112c77d594839f303963f43aaee9bde79bce1f09555fef"
    pair, rest = plan.pairs[0], plan.pairs[1:]
    assert pair.layer == 0
    changed = [replace(pair, **{name: other(getattr(pair, name))}) for name in pair.__struct_fields__]
    changed += [replace(pair, layer=None), replace(pair, kind="k", tensor="vk"), replace(pair, kind="kvk", tensor="")]
    plans = [plan, *(Plan((one, *rest), plan.columns, 1, 2) for one in changed)]
    for column in ("pair", "src_tp", "length", "dst_stride"):
        columns = dataclasses.replace(plan.columns, **{column: getattr(plan.columns, column) + 1})
        plans.append(Plan(plan.pairs, columns, 1, 2))
    plans += [Plan(plan.pairs, plan.columns, 1, 4), Plan(rest, plan.columns, 1, 2), plan.of_pairs(np.array([0]))]
    assert len({one.digest for one in plans}) == len(plans)
    merged_from = dataclasses.replace(plan.columns, pieces=plan.columns.pieces + 1)
    assert Plan(plan.pairs, merged_from, 1, 2).digest == plan.digest


def other(value: int | str) -> int | str:
    return value + "x" if isinstance(value, str) else value + 1


@settings(max_examples=60)
@given(sides())
def test_parts_of_a_plan_are_the_whole(pair: Sides):
    plan = make_plan(*pair)
    by_rank = []
    for part in pair.decode.stages:
        for tp in range(pair.decode.parallel.attn_tp):
            dst = RankId(part.pp_rank, tp)
            for src in plan.sources_of(dst):
                assert dst in plan.destinations_of(src)
                by_rank += expand(plan.between(src, dst))
    assert Counter(by_rank) == Counter(expand(plan))


def test_a_printed_line_is_the_contract_s():
    plan = make_plan(*pair_of(kv([3], heads=2, page=64, inner=128), 2, 1))
    line = next(line for line in plan.lines() if line.src.tp == 1 and line.tensor == "k")
    assert msgspec.json.decode(msgspec.json.encode(line)) == {
        "kind": "kv",
        "layer": 3,
        "tensor": "k",
        "n": 0,
        "src": {"pp": 0, "tp": 1},
        "dst": {"pp": 0, "tp": 0},
        "src_offset": 0,
        "dst_offset": 128,
        "length": 128,
        "count": 64,
        "src_stride": 128,
        "dst_stride": 256,
    }


# ---- how many copies


@pytest.mark.parametrize(
    ("part", "prefill_tp", "decode_tp", "rows", "copies"),
    [
        (kv([0], heads=8), 4, 4, 8, 8),  # equal TP: K and V whole, one copy a rank
        (kv([0], heads=8), 4, 1, 8, 8 * PAGE),  # a strided row a rank and tensor, one block a token
        (kv([0], heads=8), 1, 4, 8, 8 * PAGE),
        (kv([0], heads=2), 8, 1, 4, 4 * PAGE),  # of four ranks with equal copies one writes
        (kv([0], heads=8, page=1), 4, 1, 8, 8),
        (component("kv", "page", replicated(0, "latent", outer=PAGE)), 8, 2, 2, 2),  # MLA: whole pages, any ratio
        (component("kv", "page", replicated(0, "latent", outer=PAGE)), 2, 8, 8, 8),
        (component("mamba", "slot", entry(0, "conv", GDN)), 4, 4, 4, 4),  # sub-blocks of one rank are neighbours
        (component("mamba", "slot", entry(0, "conv", GDN)), 4, 1, 12, 12),  # q, k and v apart
        (component("mamba", "slot", entry(0, "conv", GDN)), 1, 4, 12, 12),
        (component("mamba", "slot", entry(0, "conv", GDN, outer=3)), 4, 1, 12, 36),  # [kernel − 1, channels]
        (component("mamba", "slot", entry(0, "temporal", groups((32, 1)), inner=64)), 4, 1, 4, 4),
        (component("kv", "page", entry(0, "k", groups((12, 1)))), 4, 6, 8, 8),  # neither TP divides the other
    ],
)
def test_number_of_copies(part, prefill_tp, decode_tp, rows, copies):
    pair = pair_of(part, prefill_tp, decode_tp)
    plan = make_plan(*pair)
    assert prove(plan, *pair).faults == ()
    assert (plan.stats.rows, plan.stats.copies) == (rows, copies)


def test_the_end_of_a_row_merges_with_the_start_of_the_next():
    """Rank 0 holds the first x and writes the shared B at the row's end: B and the next row's x are neighbours."""
    part = component("mamba", "slot", entry(0, "conv", groups((2, 4), (1, 3)), outer=5))
    plan = make_plan(*pair_of(part, 2, 1))
    assert sorted(plan.for_source(RankId(0, 0)).columns.count.tolist()) == [1, 1, 4]
    assert plan.for_source(RankId(0, 1)).columns.count.tolist() == [5]


# ---- who writes


def _elected(plan: Plan) -> dict[int, set[int]]:
    """Which prefill ranks write each pair."""
    writers = defaultdict(set)
    for pair, tp in zip(plan.columns.pair.tolist(), plan.columns.src_tp.tolist(), strict=True):
        writers[pair].add(tp)
    return writers


def test_replicated_state_is_written_by_one_rank_and_by_each_in_turn():
    part = component("mamba", "slot", *(replicated(i, "ple_short_conv", 8) for i in range(8)))
    writers = _elected(make_plan(*pair_of(part, 4, 1)))
    assert all(len(ranks) == 1 for ranks in writers.values())
    assert Counter(rank for ranks in writers.values() for rank in ranks) == {0: 2, 1: 2, 2: 2, 3: 2}


def test_one_large_entry_does_not_draw_the_small_ones():
    part = component("mamba", "slot", *(replicated(i, "t", 1000 if i == 0 else 1) for i in range(7)))
    writers = _elected(make_plan(*pair_of(part, 4, 1)))
    assert [rank for rank in range(4) if {rank} in writers.values()] == [0, 1, 2, 3]
    assert sum(ranks == {0} for ranks in writers.values()) == 1


@pytest.mark.parametrize("tp", [(3, 2), (2, 3), (6, 4), (4, 6)], ids=str)
def test_the_work_is_spread_where_neither_tp_divides_the_other(tp):
    """Bound to the destination with which it shares most, a source would write twice what another one does."""
    part = component("mamba", "slot", *(replicated(layer, "ple_short_conv") for layer in range(12)))
    copies = Counter(make_plan(*pair_of(part, *tp)).columns.src_tp.tolist())
    assert sorted(copies) == list(range(tp[0]))
    assert max(copies.values()) - min(copies.values()) <= 2


def test_every_destination_hears_from_its_own_sources():
    """TP 4 → 2 and 2 → 4 replicated: no rank connects to more peers than the ratio."""
    part = component("mamba", "slot", *(replicated(i, "t") for i in range(8)))
    down = make_plan(*pair_of(part, 4, 2))
    assert [down.sources_of(RankId(0, tp)) for tp in range(2)] == [((0, 0), (0, 1)), ((0, 2), (0, 3))]
    up = make_plan(*pair_of(part, 2, 4))
    assert [up.destinations_of(RankId(0, tp)) for tp in range(2)] == [((0, 0), (0, 1)), ((0, 2), (0, 3))]


def test_a_request_wide_entry_comes_from_the_lowest_stage():
    ring = component("qsa_pending", "row", replicated(ROPE_RING_LAYER, "rope_position", 3))
    prefill = manifest("prefill", 2, stage(0, (0, 2), ring), stage(1, (2, 4), ring))
    decode = manifest("decode", 2, stage(0, (0, 1), ring), stage(1, (1, 4), ring))
    plan = make_plan(prefill, decode)
    assert {(p.src_pp, p.dst_pp) for p in plan.pairs} == {(0, 0), (0, 1)}
    assert prove(plan, prefill, decode).faults == ()


# ---- seeds: failures that other engines had


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(1, 4), (4, 1), (2, 8), (8, 2)])
def test_gdn_conv_slices_do_not_straddle_q_k_v(prefill_tp, decode_tp):
    """cat(q, k, v): each sub-block is cut on its own, in both directions."""
    pair = pair_of(component("mamba", "slot", entry(0, "conv", GDN, inner=6)), prefill_tp, decode_tp)
    plan = make_plan(*pair)
    assert prove(plan, *pair).faults == ()
    edges = np.cumsum([group.heads * group.width * 6 // decode_tp for group in GDN])
    for *_, dst, length in expand(plan):
        assert not [edge for edge in edges if dst < edge < dst + length]


def test_replicated_kv_heads_go_to_consecutive_ranks():
    """2 KV heads on TP 4: ranks 0 and 1 hold head 0. By `%` rank 1 would get head 1."""
    plan = make_plan(*pair_of(kv([0], heads=2, page=1, inner=8), 1, 4))
    offsets = {tp: set(plan.for_destination(RankId(0, tp)).columns.src_offset.tolist()) for tp in range(4)}
    assert offsets == {0: {0}, 1: {0}, 2: {8}, 3: {8}}


def test_a_stage_without_sparse_layers_sends_nothing_of_them():
    qsa = component("qsa_compressed", "page", replicated(5, "compressed_k"))
    prefill = manifest("prefill", 1, stage(0, (0, 4), kv([0])), stage(1, (4, 8), kv([4]), qsa))
    decode = single("decode", 1, kv([0, 4]), qsa)
    plan = make_plan(prefill, decode)
    kinds = {plan.pairs[p].kind for p in plan.for_source(RankId(0, 0)).columns.pair.tolist()}
    assert kinds == {"kv"}
    assert prove(plan, prefill, decode).faults == ()


def test_a_placeholder_moves_nothing():
    part = component("dsa", "page", replicated(0, "index_k", outer=1, inner=16), replicated(1, "index_k", inner=0))
    plan = make_plan(*pair_of(part, 2, 1))
    assert [pair.layer for pair in plan.pairs] == [0]


# ---- what no plan exists for


def _code(prefill: Manifest, decode: Manifest) -> str:
    with pytest.raises(PlanError) as error:
        make_plan(prefill, decode)
    assert error.value.message
    return error.value.code


@pytest.mark.code("PD1008")
@pytest.mark.parametrize(
    "other",
    [
        entry(0, "conv", GDN, inner=4),
        entry(0, "conv", groups((16, 4), (16, 4), (32, 2)), inner=6),
        entry(0, "conv", GDN, outer=2, inner=6),
        replicated(0, "conv", inner=0),
    ],
)
def test_entries_of_unequal_shape(other):
    """Mamba slot lengths that differ, among others."""
    ours = single("prefill", 1, component("mamba", "slot", entry(0, "conv", GDN, inner=6)))
    assert _code(ours, single("decode", 1, component("mamba", "slot", other))) == "PD1008"


@pytest.mark.code("PD1001")
def test_unequal_page_sizes():
    assert _code(single("prefill", 1, kv([0])), single("decode", 1, kv([0], page=32), page=32)) == "PD1001"


@pytest.mark.code("PD1004")
def test_a_split_that_does_not_divide():
    side = single("prefill", 2, kv([0], heads=6))
    side = replace(side, parallel=Parallel(4))
    part = side.stages[0].components[0]
    part = replace(part, entries=tuple(replace(e, item_len=1) for e in part.entries))
    side = replace(side, stages=(replace(side.stages[0], components=(part,)),))
    assert _code(side, single("decode", 1, kv([0], heads=6))) == "PD1004"


@pytest.mark.code("PD1021")
def test_a_manifest_that_contradicts_itself():
    side = replace(single("prefill", 1, kv([0])), parallel=Parallel(2))
    assert _code(side, single("decode", 1, kv([0]))) == "PD1021"
    assert _code(single("decode", 1, kv([0])), single("decode", 1, kv([0]))) == "PD1021"


@pytest.mark.code("PD1010")
@pytest.mark.code("PD1012")
def test_entries_that_cannot_be_paired_soundly():
    bare = component("kv", "page", replicated(None, "latent"), replicated(None, "latent"))
    mixed = component("kv", "page", replicated(None, "latent"), replicated(1, "latent"))
    one = component("kv", "page", replicated(None, "latent"))
    assert _code(single("prefill", 1, bare), single("decode", 1, one)) == "PD1012"
    assert _code(single("prefill", 1, mixed), single("decode", 1, mixed)) == "PD1010"


@pytest.mark.code("PD1030")
def test_absurd_sizes_are_refused_before_memory_is_taken():
    wide = component("kv", "page", replicated(0, "latent"))
    assert _code(single("prefill", 10**9, wide), single("decode", 1, wide)) == "PD1030"
    huge = component("kv", "page", replicated(0, "latent", outer=2**60), replicated(1, "latent", outer=2**60))
    assert _code(single("prefill", 1, huge), single("decode", 1, huge)) == "PD1030"


NUMBERS = st.sampled_from([-(2**70), -1, 0, 1, 2, 3, 7, 2**31, 2**32 - 1, 2**62, 2**63, 10**30])


@settings(max_examples=120)
@given(sides(), st.data())
def test_absurd_numbers_are_never_a_traceback(pair: Sides, data):
    """Any integer of the document replaced by any other: planned where it still makes sense, else PlanError."""
    role = data.draw(st.sampled_from(Sides._fields))
    document = msgspec.to_builtins(getattr(pair, role))
    places = [(at, key) for at, key in _integers(document)]
    at, key = data.draw(st.sampled_from(places))
    at[key] = data.draw(NUMBERS)
    side = msgspec.convert(document, Manifest)
    pair = pair._replace(**{role: side})
    with suppress(PlanError):
        plan = make_plan(*pair)
        assert not faults(side)
        assert prove(plan, *pair).faults == ()


def _integers(value):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        if isinstance(inner, int) and not isinstance(inner, bool):
            yield value, key
        else:
            yield from _integers(inner)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("hybrid-prefill-tp4", "hybrid-decode-tp1"),
        ("hybrid-prefill-tp1-pp2", "hybrid-decode-tp1"),
        ("dense-prefill-tp2", "dense-decode-tp8"),
    ],
)
def test_the_examples_are_planned_and_proved(prefill, decode):
    pair = read_manifest(EXAMPLES[prefill]), read_manifest(EXAMPLES[decode])
    plan = make_plan(*pair)
    proof = prove(plan, *pair)
    assert proof.faults == ()
    assert proof.bytes == plan.stats.bytes

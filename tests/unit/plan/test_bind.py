"""Bound plans move real memory: each byte of each item arrives, nothing else changes, runs become single blocks."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pdctl_transfer.errors import BindError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.pairing import locate, pair_entries
from pdctl_transfer.plan import Blocks, RankId, bind, make_plan
from pdctl_transfer.plan.expected import held_units
from pdctl_transfer.region import Region
from tests.unit.layout.build import component, entry, groups, kv, replicated, single
from tests.unit.plan.layouts import Sides, sides

ITEMS = 5


class Memory:
    """One rank's pools in one address space, at an address that no other rank uses."""

    def __init__(self, side: Manifest, rank: RankId, base: int, items: int = ITEMS, gap: int = 0) -> None:
        self.base = base
        self.regions = []
        for located in locate(side):
            if located.place.pp == rank.pp:
                step = located.entry.item_len + gap
                self.regions.append(Region(base, items, located.entry.item_len, stride=gap and step))
                base += items * step + 3  # unaligned: regions need not be neighbours
        self.data = np.zeros(base - self.base, dtype=np.int64)

    def items(self, index: int) -> np.ndarray:
        region = self.regions[index]
        start = region.base - self.base
        whole = self.data[start : start + region.items * region.step].reshape(region.items, region.step)
        return whole[:, : region.item_len]


def ranks(side: Manifest) -> list[RankId]:
    return [RankId(part.pp_rank, tp) for part in side.stages for tp in range(side.parallel.attn_tp)]


def content(located, tp: int, rank: int, item: int) -> np.ndarray:
    """A number for every logical byte of an item, the same whichever rank holds it."""
    entry = located.entry
    units = sum(group.heads * group.width for group in entry.groups)
    row = held_units(entry, tp, rank)[None, :] + units * np.arange(entry.outer)[:, None]
    inside = row[..., None] * entry.inner_bytes + np.arange(entry.inner_bytes)
    return 1 + item + 100 * inside.ravel()


@settings(max_examples=50)
@given(pair=sides((1, 2, 3, 4, 6)), data=st.data())
def test_every_item_arrives_and_nothing_else_changes(pair: Sides, data):
    """Patterned memory on all ranks, items apart or not; the copies that `bind` gives are carried out by hand."""
    plan = make_plan(*pair)
    kinds = {located.kind for located in locate(pair.decode)}
    some = st.permutations(range(ITEMS))
    count = data.draw(st.integers(1, ITEMS))
    src_ids = {kind: data.draw(some)[:count] for kind in kinds}
    dst_ids = {kind: data.draw(some)[:count] for kind in kinds}
    gap, their_gap = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    targets = {rank: Memory(pair.decode, rank, 10**9, gap=their_gap) for rank in ranks(pair.decode)}
    for src in ranks(pair.prefill):
        memory = Memory(pair.prefill, src, 10**6, gap=gap)
        for located in locate(pair.prefill):
            if located.place.pp == src.pp and located.entry.item_len:
                for item in range(ITEMS):
                    tp = pair.prefill.parallel.attn_tp
                    memory.items(located.place.index)[item] = content(located, tp, src.tp, item)
        for dst in plan.destinations_of(src):
            target = targets[dst]
            blocks = bind(plan.between(src, dst), memory.regions, target.regions, src_ids, dst_ids)
            for at, to, size in zip(*(column.tolist() for column in blocks), strict=True):
                here = slice(to - target.base, to - target.base + size)
                assert not target.data[here].any()  # written once
                target.data[here] = memory.data[at - memory.base : at - memory.base + size]
    filled = {(pair.dst.place.pp, pair.dst.place.index) for pair in pair_entries(*pair).pairs}
    for rank, target in targets.items():
        left = target.data.copy()
        for located in locate(pair.decode):
            if located.place.pp == rank.pp and (rank.pp, located.place.index) in filled and located.entry.item_len:
                for src_item, dst_item in zip(src_ids[located.kind], dst_ids[located.kind], strict=True):
                    expected = content(located, pair.decode.parallel.attn_tp, rank.tp, src_item)
                    assert (target.items(located.place.index)[dst_item] == expected).all()
                region = target.regions[located.place.index]
                start = region.base - target.base
                items = left[start : start + ITEMS * region.step].reshape(ITEMS, region.step)
                items[dst_ids[located.kind], : region.item_len] = 0
        assert not left.any()


def bound(part, prefill_tp: int, decode_tp: int, src: list[int], dst: list[int], items: int = 1000) -> Blocks:
    prefill, decode = single("prefill", prefill_tp, part), single("decode", decode_tp, part)
    plan = make_plan(prefill, decode).between(RankId(0, 0), RankId(0, 0))
    ours, theirs = (Memory(side, RankId(0, 0), 0, items).regions for side in (prefill, decode))
    return bind(plan, ours, theirs, {part.kind: src}, {part.kind: dst})


@pytest.mark.parametrize(
    ("prefill_tp", "decode_tp", "src", "dst", "blocks"),
    [
        (2, 2, list(range(100)), list(range(500, 600)), 4),  # one run: a block an entry
        (2, 2, list(range(0, 200, 2)), list(range(100)), 400),  # no two neighbours on the source
        (2, 2, list(range(100)), list(range(100))[::-1], 400),  # consecutive, but backwards on one side
        (2, 2, [1, 2, 3, 7, 8], [4, 5, 9, 10, 11], 12),  # runs end where either side's does
        (2, 1, list(range(100)), list(range(100)), 4 * 100 * 16),  # unequal TP: a block a token
        (2, 2, [], [], 0),
    ],
)
def test_number_of_blocks(prefill_tp, decode_tp, src, dst, blocks):
    got = bound(kv([0, 1]), prefill_tp, decode_tp, src, dst)
    assert len(got.src) == len(got.dst) == len(got.length) == blocks


def test_the_first_copies_are_where_the_contract_says():
    """TP 2 → 1, page 16, 2 heads of 8 bytes a rank: token j of the page goes to 32 j."""
    blocks = bound(kv([0]), 2, 1, [3], [5])
    assert blocks.src[:3].tolist() == [3 * 256, 3 * 256 + 16, 3 * 256 + 32]
    assert blocks.dst[:3].tolist() == [5 * 512, 5 * 512 + 32, 5 * 512 + 64]
    assert set(blocks.length.tolist()) == {16}


def test_kinds_have_their_own_indices():
    state = component("mamba", "slot", entry(0, "temporal", groups((4, 1)), inner=8))
    prefill, decode = single("prefill", 1, kv([0]), state), single("decode", 1, kv([0]), state)
    plan = make_plan(prefill, decode)
    regions = Memory(prefill, RankId(0, 0), 0).regions
    blocks = bind(plan, regions, regions, {"kv": [0], "mamba": [4]}, {"kv": [1], "mamba": [2]})
    assert (blocks.src[-1] - regions[2].base, blocks.dst[-1] - regions[2].base) == (4 * 32, 2 * 32)
    only = bind(plan, regions, regions, {"mamba": [4]}, {"mamba": [2]})
    assert only.length.tolist() == [32]


SIDES = single("prefill", 2, kv([0])), single("decode", 2, kv([0]))
OURS = Memory(SIDES[0], RankId(0, 0), 0).regions


@pytest.mark.code("PD1031")
@pytest.mark.parametrize(
    ("src", "dst", "regions", "reason"),
    [
        ([0, 1], [0], OURS, "kv: 2 source indices, 1 destination indices"),
        ([5], [0], OURS, "source: kv index 5, the region has 5 items"),
        ([0], [-1], OURS, "destination: kv index -1, the region has 5 items"),
        ([0], [0], OURS[:1], "source: 1 regions, the plan uses number 1 (kv layer 0 v)"),
        ([0], [0], [OURS[0], replace(OURS[1], item_len=8)], "region 1 (kv layer 0 v) has items of 8 bytes"),
        ([0], [4], [OURS[0], replace(OURS[1], items=3)], "destination: kv index 4, the region has 3 items"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_byte_moves(src, dst, regions, reason):
    plan = make_plan(*SIDES).between(RankId(0, 0), RankId(0, 0))
    with pytest.raises(BindError) as error:
        bind(plan, regions, regions, {"kv": src}, {"kv": dst})
    assert error.value.code == "PD1031"
    assert reason in error.value.message


@pytest.mark.code("PD1031")
def test_a_plan_of_several_ranks_has_no_addresses():
    with pytest.raises(BindError, match="several ranks a side"):
        bind(make_plan(*SIDES), OURS, OURS, {"kv": [0]}, {"kv": [0]})


def test_index_arrays_of_any_integer_type():
    part = component("kv", "page", replicated(0, "latent", 2, 4))
    for kind in (np.int32, np.uint32, np.int64):
        ids = np.array([2, 3], dtype=kind)
        assert bound(part, 1, 1, ids, ids).length.tolist() == [64]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=1, max_size=30))
def test_blocks_never_overlap_for_distinct_items(ids):
    src, dst = [i for i, _ in ids], [j for _, j in ids]
    assume(len(set(dst)) == len(dst))
    blocks = bound(kv([0]), 2, 2, src, dst)
    order = np.argsort(blocks.dst)
    assert (blocks.dst[order][1:] >= (blocks.dst + blocks.length)[order][:-1]).all()

"""The prover catches planted faults, says where they are, and agrees with the engine on what a flat slice corrupts."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plan import Columns, Plan, RankId, flat_damage, make_plan, prove
from pdctl_transfer.plan.expected import held_units
from pdctl_transfer.plan.flat import flat_copies
from tests.unit.layout.build import component, entry, groups, kv, replicated, single
from tests.unit.plan.layouts import TPS, Sides, sides


def changed(plan: Plan, row: int, **new: int) -> Plan:
    columns = {name: getattr(plan.columns, name).copy() for name in Columns.__slots__}
    for name, value in new.items():
        columns[name][row] = value
    return replace(plan, columns=Columns(**columns))


def at(plan: Plan, row: int, name: str) -> int:
    return int(getattr(plan.columns, name)[row])


def keep(plan: Plan, rows: list[int]) -> Plan:
    return replace(plan, columns=plan.columns.where(np.array(rows, dtype=np.int64)))


def left_out(plan: Plan, row: int, pair: Sides) -> Plan:
    return keep(plan, [i for i in range(len(plan.columns)) if i != row])


def done_twice(plan: Plan, row: int, pair: Sides) -> Plan:
    return keep(plan, [*range(len(plan.columns)), row])


def written_one_byte_further(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, dst_offset=at(plan, row, "dst_offset") + 1)


def read_one_byte_further(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, src_offset=at(plan, row, "src_offset") + 1)


def one_byte_short(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, length=at(plan, row, "length") - 1)


def one_byte_long(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, length=at(plan, row, "length") + 1)


def one_repetition_short(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, count=at(plan, row, "count") - 1)


def one_repetition_long(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, count=at(plan, row, "count") + 1)


def wrong_stride(plan: Plan, row: int, pair: Sides) -> Plan:
    repeated = np.flatnonzero(plan.columns.count > 1)
    assume(len(repeated))
    row = int(repeated[row % len(repeated)])
    return changed(plan, row, dst_stride=at(plan, row, "dst_stride") + 1)


def before_the_item(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, dst_offset=-1)


def into_the_next_item(plan: Plan, row: int, pair: Sides) -> Plan:
    """Where the next request's slot lies."""
    return changed(plan, row, dst_offset=plan.pairs[at(plan, row, "pair")].dst_item_len)


def from_a_rank_that_holds_other_heads(plan: Plan, row: int, pair: Sides) -> Plan:
    tp, planned = pair.prefill.parallel.attn_tp, plan.pairs[at(plan, row, "pair")]
    stage = next(s for s in pair.prefill.stages if s.pp_rank == planned.src_pp)
    src = [e for c in stage.components for e in c.entries][planned.src_index]
    own = held_units(src, tp, at(plan, row, "src_tp"))
    # Ranks that differ in every group: else this very copy may be the same on both.
    others = [rank for rank in range(tp) if not np.isin(held_units(src, tp, rank), own).any()]
    assume(others)
    return changed(plan, row, src_tp=others[0])


def into_another_rank(plan: Plan, row: int, pair: Sides) -> Plan:
    assume(pair.decode.parallel.attn_tp > 1)
    return changed(plan, row, dst_tp=(at(plan, row, "dst_tp") + 1) % pair.decode.parallel.attn_tp)


def into_a_rank_that_is_not_there(plan: Plan, row: int, pair: Sides) -> Plan:
    return changed(plan, row, dst_tp=pair.decode.parallel.attn_tp)


def from_the_entry_of_another_layer(plan: Plan, row: int, pair: Sides) -> Plan:
    """Positional pairing over PP stages: right sizes, wrong layer."""
    p = at(plan, row, "pair")
    own = plan.pairs[p]
    twin = next((q for q in plan.pairs if q.src_pp == own.src_pp and q.src_index != own.src_index), None)
    assume(twin is not None)
    pairs = [*plan.pairs]
    pairs[p] = type(own)(**{**{f: getattr(own, f) for f in own.__struct_fields__}, "src_index": twin.src_index})
    return replace(plan, pairs=tuple(pairs))


PLANTED: tuple[Callable[[Plan, int, Sides], Plan], ...] = (
    left_out,
    done_twice,
    written_one_byte_further,
    read_one_byte_further,
    one_byte_short,
    one_byte_long,
    one_repetition_short,
    one_repetition_long,
    wrong_stride,
    before_the_item,
    into_the_next_item,
    from_a_rank_that_holds_other_heads,
    into_another_rank,
    into_a_rank_that_is_not_there,
    from_the_entry_of_another_layer,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
@settings(max_examples=20)
@given(pair=sides(), data=st.data())
def test_the_prover_catches(plant, pair, data):
    plan = make_plan(*pair)
    assume(len(plan.columns))
    row = data.draw(st.integers(0, len(plan.columns) - 1))
    assert prove(plant(plan, row, pair), *pair).faults


def test_a_fault_names_component_layer_tensor_rank_and_bytes():
    pair = Sides(single("prefill", 2, kv([3, 7], heads=4)), single("decode", 1, kv([3, 7], heads=4)))
    plan = make_plan(*pair)
    row = next(i for i, line in enumerate(plan.lines()) if (line.layer, line.tensor, line.src.tp) == (7, "v", 1))
    [fault] = prove(left_out(plan, row, pair), *pair).faults
    assert (fault.what, fault.kind, fault.layer, fault.tensor, fault.n) == ("never", "kv", 7, "v", 0)
    assert fault.rank == RankId(0, 0)
    assert (fault.start, fault.stop, fault.bytes) == (16, 32, 16 * 16)

    faults = prove(changed(plan, row, src_tp=0), *pair).faults
    assert [(fault.what, fault.source) for fault in faults] == [("wrong source", RankId(0, 0))]

    faults = prove(changed(plan, row, dst_offset=32), *pair).faults
    assert [(f.what, f.start, f.stop) for f in faults] == [
        ("past the destination item", 512, 528),
        ("never", 16, 32),
    ]


def test_an_entry_that_is_not_planned_at_all_is_never_written():
    part = component("mamba", "slot", replicated(0, "conv", 5), replicated(1, "conv", 5))
    pair = Sides(single("prefill", 1, part), single("decode", 2, part))
    plan = make_plan(*pair)
    pruned = replace(plan, pairs=plan.pairs[:1], columns=plan.columns.where(plan.columns.pair == 0))
    faults = prove(pruned, *pair).faults
    assert [(f.what, f.layer, f.rank.tp, f.bytes) for f in faults] == [("never", 1, 0, 20), ("never", 1, 1, 20)]


def test_modulo_instead_of_division_is_caught():
    """2 KV heads on TP 4, dealt by `rank % heads`: ranks 1 and 2 get the other's head."""
    part = kv([0], heads=2, page=1, inner=8)
    pair = Sides(single("prefill", 1, part), single("decode", 4, part))
    plan = make_plan(*pair)
    columns = replace(plan.columns, src_offset=plan.columns.dst_tp % 2 * 8)
    faults = prove(replace(plan, columns=columns), *pair).faults
    assert {(f.what, f.rank.tp) for f in faults} == {("wrong source", 1), ("wrong source", 2)}


# ---- flat slices: the numbers that were measured with the engine's own functions

NEMOTRON_NANO = groups((64, 64), (8, 128), (8, 128))
FALCON_1_5B = groups((24, 128), (1, 256), (1, 256))


def conv(role: str, tp: int, cut: tuple, **more) -> Manifest:
    return single(role, tp, component("mamba", "slot", entry(0, "conv", cut, inner=6, engine_slices="flat", **more)))


@pytest.mark.parametrize(
    ("cut", "prefill_tp", "decode_tp", "channels", "wrong", "past_end"),
    [
        (NEMOTRON_NANO, 2, 1, 6144, 3584, 0),
        (FALCON_1_5B, 2, 1, 3584, 2048, 3072),
        (FALCON_1_5B, 4, 8, 7168, 6784, 0),
    ],
)
def test_damage_of_a_flat_slice(cut, prefill_tp, decode_tp, channels, wrong, past_end):
    pair = conv("prefill", prefill_tp, cut), conv("decode", decode_tp, cut)
    [damage] = flat_damage(*pair)
    assert (damage.kind, damage.layer, damage.tensor) == ("mamba", 0, "conv")
    assert (damage.channels, damage.wrong, damage.past_end) == (channels, wrong, past_end)
    assert prove(make_plan(*pair), *pair).faults == ()  # by groups nothing is wrong


@pytest.mark.parametrize(("prefill_tp", "decode_tp"), [(2, 1), (1, 2), (4, 8)])
def test_the_prover_catches_flat_slices(prefill_tp, decode_tp):
    pair = conv("prefill", prefill_tp, NEMOTRON_NANO), conv("decode", decode_tp, NEMOTRON_NANO)
    plan = make_plan(*pair)
    flat = list(flat_copies(pair[0].stages[0].components[0].entries[0], prefill_tp, decode_tp))
    zero = np.zeros(len(flat), dtype=np.int64)
    names = ("src", "dst", "src_unit", "dst_unit", "units")
    src, dst, src_unit, dst_unit, units = (np.array([getattr(copy, name) for copy in flat]) for name in names)
    columns = Columns(zero, zero, src, zero, dst, src_unit * 6, dst_unit * 6, units * 6, zero + 1, zero, zero, zero)
    wrong = [f for f in prove(replace(plan, columns=columns), *pair).faults if f.what == "wrong source"]
    [damage] = flat_damage(*pair)
    assert sum(fault.bytes for fault in wrong) == damage.wrong * 6


@pytest.mark.parametrize("tp", TPS)
def test_equal_tp_is_never_damaged(tp):
    cut = groups((48, 2), (1, 3))
    assert flat_damage(conv("prefill", tp, cut), conv("decode", tp, cut)) == ()


def test_a_single_group_may_be_cut_flat():
    cut = groups((8, 4))
    assert flat_damage(conv("prefill", 4, cut), conv("decode", 1, cut)) == ()

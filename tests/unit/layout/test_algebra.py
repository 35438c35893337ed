"""The contract's item formula and sharding rule, and every way in which a manifest can contradict itself."""

import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import PlanError
from pdctl_transfer.layout.algebra import faults, heads_per_rank, item_len, local_heads, local_units, split_faults
from pdctl_transfer.layout.manifest import Entry, Group, Parallel
from pdctl_transfer.layout.read import read_manifest
from tests.unit.layout.build import component, entry, groups, kv, manifest, replicated, single, stage
from tests.unit.layout.examples import EXAMPLES

GDN = groups((16, 128), (16, 128), (32, 128))


@pytest.mark.parametrize(
    ("heads", "tp", "held"),
    [
        (8, 1, [(0, 8)]),
        (8, 4, [(0, 2), (2, 4), (4, 6), (6, 8)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),  # consecutive ranks hold copies: // and not %
        (1, 3, [(0, 1)] * 3),
        (12, 6, [(0, 2), (2, 4), (4, 6), (6, 8), (8, 10), (10, 12)]),
    ],
)
def test_heads_of_a_rank(heads, tp, held):
    got = [local_heads(Group(heads, 3), tp, rank) for rank in range(tp)]
    assert [(part.start, part.stop) for part in got] == held


@pytest.mark.parametrize(
    ("shape", "tp", "expected"),
    [
        # The formulas that the engine's own pools were measured to follow.
        (entry(0, "k", groups((8, 1)), 64, 256), 4, 64 * 2 * 256),
        (entry(0, "k", groups((8, 1)), 64, 256), 16, 64 * 1 * 256),
        (entry(0, "conv", GDN, 1, 6), 4, (2 * 16 * 128 + 32 * 128) // 4 * 6),
        (entry(0, "conv", groups((24, 128), (1, 256), (1, 256)), 1, 6), 4, 7680),
        (entry(0, "conv", groups((24, 128), (1, 256), (1, 256)), 1, 6), 8, 5376),
        (replicated(0, "latent", 1, 64, 1152), 8, 64 * 1152),
        (replicated(0, "index_k", 1, 1, 0), 8, 0),
    ],
)
def test_item_length(shape, tp, expected):
    assert item_len(shape, tp) == expected


def test_groups_split_independently():
    """Not proportional to 1/tp once a group has fewer heads than ranks."""
    cut = entry(0, "conv", groups((8, 2), (2, 5)))
    assert [local_units(cut, tp) for tp in (1, 2, 4, 8)] == [26, 13, 9, 7]


def test_a_split_that_does_not_divide_is_an_error_not_a_guess():
    with pytest.raises(PlanError) as error:
        heads_per_rank(Group(6, 1), 4)
    assert error.value.code == "PD1004"


def test_split_faults_name_the_group():
    side = single("prefill", 4, component("mamba", "slot", replicated(0, "conv")))
    bad = entry(0, "conv", groups((8, 1), (6, 1)))
    side = _with_entry(side, replace(bad, item_len=1))
    [fault] = split_faults(side)
    assert fault.path == "$.stages[0].components[0].entries[0].groups[1].heads"
    assert fault.found == "6"
    assert faults(side) == []  # PD1004 says it; PD1021 does not repeat it


@pytest.mark.parametrize("path", sorted(EXAMPLES.values()), ids=lambda path: path.stem)
def test_the_examples_agree_with_themselves(path):
    side = read_manifest(path)
    assert faults(side) == []
    assert split_faults(side) == []


def _with_entry(side, changed: Entry):
    [first, *rest] = side.stages
    part = replace(first.components[0], entries=(changed, *first.components[0].entries[1:]))
    return replace(side, stages=(replace(first, components=(part, *first.components[1:])), *rest))


BASE = single("prefill", 2, kv([0, 1]), component("mamba", "slot", entry(2, "conv", GDN)))
TWO = manifest("prefill", 2, stage(0, (0, 4), kv([0, 1])), stage(1, (4, 8), kv([4, 5])))
FIRST = BASE.stages[0].components[0].entries[0]


def _stages(*ranges, ranks=(0, 1)):
    changed = [
        replace(part, layers=cut, pp_rank=rank) for part, cut, rank in zip(TWO.stages, ranges, ranks, strict=True)
    ]
    return replace(TWO, stages=tuple(changed))


@pytest.mark.parametrize(
    ("side", "path", "found"),
    [
        (_with_entry(BASE, replace(FIRST, item_len=255)), "$.stages[0].components[0].entries[0].item_len", "255"),
        (_with_entry(BASE, replace(FIRST, outer=0)), "$.stages[0].components[0].entries[0].outer", "0"),
        (_with_entry(BASE, replace(FIRST, inner_bytes=-8)), "$.stages[0].components[0].entries[0].inner_bytes", "-8"),
        (_with_entry(BASE, replace(FIRST, groups=())), "$.stages[0].components[0].entries[0].groups", "none"),
        (
            _with_entry(BASE, replace(FIRST, groups=groups((0, 1)))),
            "$.stages[0].components[0].entries[0].groups[0].heads",
            "0",
        ),
        (
            _with_entry(BASE, replace(FIRST, groups=groups((4, -1)))),
            "$.stages[0].components[0].entries[0].groups[0].width",
            "-1",
        ),
        (_with_entry(BASE, replace(FIRST, layer=-1)), "$.stages[0].components[0].entries[0].layer", "-1"),
        (_with_entry(BASE, replace(FIRST, layer=2**32)), "$.stages[0].components[0].entries[0].layer", "4294967296"),
        (
            _with_entry(BASE, replace(FIRST, groups=groups((10**30, 1)), item_len=10**30)),
            "$.stages[0].components[0].entries[0].item_len",
            "1" + "0" * 30,
        ),
        (replace(BASE, page_size=0), "$.page_size", "0"),
        (replace(BASE, parallel=Parallel(0)), "$.parallel.attn_tp", "0"),
        (replace(BASE, parallel=Parallel(2, attn_cp=-1)), "$.parallel.attn_cp", "-1"),
        (replace(BASE, parallel=Parallel(2, dp=0)), "$.parallel.dp", "0"),
        (replace(BASE, parallel=Parallel(2, pp=2)), "$.stages", "1 stages"),
        (replace(BASE, stages=()), "$.stages", "0 stages"),
        (_stages((0, 4), (3, 8)), "$.stages[1].layers[0]", "3, which overlaps stage 0"),
        (_stages((0, 4), (5, 8)), "$.stages[1].layers[0]", "5, which leaves a gap after stage 0"),
        (_stages((0, 4), (4, 2)), "$.stages[1].layers", "[4, 2]"),
        (_stages((0, 4), (4, 8), ranks=(0, 0)), "$.stages[1].pp_rank", "0"),
        (_stages((0, 4), (4, 8), ranks=(0, 7)), "$.stages[1].pp_rank", "7"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith("$") else None,
)
def test_a_contradiction_is_found_at_its_place(side, path, found):
    got = [(fault.path, fault.found) for fault in faults(side)]
    assert (path, found) in got


def test_one_kind_has_one_index_space():
    side = single("prefill", 1, kv([0]), component("kv", "slot", replicated(1, "latent")))
    [fault] = faults(side)
    assert fault.path == "$.stages[0].components[1].index_space"
    assert fault.expected.startswith("page")


def test_stages_may_be_listed_in_any_order():
    assert faults(replace(TWO, stages=TWO.stages[::-1])) == []


def test_a_placeholder_keeps_its_place():
    assert faults(single("prefill", 2, component("dsa", "page", replicated(0, "index_k", inner=0)))) == []

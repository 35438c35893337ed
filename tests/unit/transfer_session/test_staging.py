"""Packing is exact, chunks cover everything once, and the cheapest way that is possible is taken."""

import ctypes
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl_transfer.plan import RankId
from pdctl_transfer.session import Rank
from pdctl_transfer.session.bytes import cost
from pdctl_transfer.session.bytes.copier import NumpyCopier
from pdctl_transfer.session.bytes.copying import Lot, abreast
from pdctl_transfer.session.bytes.cost import Load, choose, possible, seconds
from pdctl_transfer.session.bytes.packing import Strip, chunk_bytes, chunks
from pdctl_transfer.session.bytes.work import PairPlan
from tests.unit.transfer_session.world import Buffers, manifest

TPS = st.sampled_from([1, 2, 4])


@settings(max_examples=25, deadline=None)
@given(TPS, TPS, st.integers(1, 12), st.integers(0, 1000), st.integers(200, 5000), st.sampled_from([1, -1, 0]))
def test_what_is_gathered_and_scattered_is_what_the_layout_says(
    src: int, dst: int, items: int, seed: int, limit: int, row: int
) -> None:
    """`row`: the sources' chunks lie side by side in the order of their ranks, or backwards, or anywhere."""
    here, there = manifest("prefill", src), manifest("decode", dst)
    pair = PairPlan(here, there)
    rng = np.random.default_rng(seed)
    ours, theirs = rng.permutation(16)[:items], rng.permutation(16)[:items]
    together: dict[Any, list[Any]] = {}
    receivers = {rank: Buffers(there, Rank(*rank), 16) for rank in {d for _, d in pair.links}}
    for source in {s for s, _ in pair.links}:
        sender = Buffers(here, Rank(*source), 16)
        for (kind, entry), array in zip(sender.entries(), sender.arrays, strict=True):
            array[ours] = sender.slice_of(1, kind, entry, items)
        for target in receivers:
            part = pair.part(source, target)
            for kind in part.kinds:
                for number, chunk in enumerate(chunks(part.strips[kind], items, limit)):
                    packed = NumpyCopier(()).allocate(chunk_bytes(chunk))
                    for segment in chunk:
                        NumpyCopier(sender.regions()).gather(segment, ours, packed)
                    together.setdefault((target, kind, number), []).append(Lot(chunk, theirs, packed))
    for (target, _, _), group in together.items():
        laid = side_by_side(group, row) if row else group
        for share in range(3):
            NumpyCopier(receivers[target].regions()).scatter(laid, share, 3)
    every = {kind: theirs.tolist() for kind in ("kv", "mamba", "qsa_pending", "qsa_compressed")}
    for receiver in receivers.values():
        assert receiver.wrong(1, every) == []
        assert receiver.untouched(every)


def side_by_side(group: list[Lot], step: int) -> list[Lot]:
    size = max(lot.packed.nbytes for lot in group)
    area = NumpyCopier(()).allocate(size * len(group))
    laid = []
    for number, lot in enumerate(group):
        place = area.part((number if step > 0 else len(group) - 1 - number) * size, lot.packed.nbytes)
        ctypes.memmove(place.base, lot.packed.base, place.nbytes)
        laid.append(Lot(lot.chunk, lot.ids, place))
    return laid


@pytest.mark.parametrize(("step", "passes"), [(1, 1), (-1, 1), (0, 4)])
def test_chunks_side_by_side_are_put_into_place_in_one_assignment(step: int, passes: int) -> None:
    """TP 4 → 1: what is interleaved in the item is written from front to back, not in four passes."""
    pair = PairPlan(manifest("prefill", 4), manifest("decode", 1))
    group = []
    apart = [NumpyCopier(()).allocate(1 << 16) for _ in range(7)]  # at distances that nobody chose
    for tp, at in enumerate([0, 3, 1, 6]):
        part = pair.part(RankId(0, tp), RankId(0, 0))
        chunk = chunks(part.strips["mamba"][:1], 1, 1 << 16)[0]
        group.append(Lot(chunk, np.arange(1), apart[at].part(64 * at, chunk_bytes(chunk))))
    copies = len(group[0].chunk[0].strip.copies)
    assert len(list(abreast(side_by_side(group, step) if step else group))) == copies * passes


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.integers(1, 50), st.integers(1, 1000))
def test_chunks_cover_each_item_once_and_respect_the_limit(sizes: list[int], items: int, limit: int) -> None:
    parts = tuple(Strip(i, i, size, size, size, 0, 0, ()) for i, size in enumerate(sizes))
    seen: Counter[tuple[int, int]] = Counter()
    for chunk in chunks(parts, items, limit):
        at = 0
        for segment in chunk:
            assert segment.at == at
            at += segment.bytes
            seen.update((segment.strip.src_index, item) for item in range(segment.start, segment.stop))
        assert at <= limit or (len(chunk) == 1 and chunk[0].stop - chunk[0].start == 1)
    assert seen == Counter({(i, item): 1 for i in range(len(sizes)) for item in range(items)})


def load(src: int, dst: int, items: int, runs: int, scale: int = 16) -> Load:
    pair = PairPlan(manifest("prefill", src, scale=scale), manifest("decode", dst, scale=scale))
    ids = np.arange(items) + np.arange(items) * runs // max(1, items)
    return Load(pair.part(RankId(0, 0), RankId(0, 0)).strips["kv"], ids)


@pytest.mark.parametrize(
    ("src", "dst", "runs", "way"),
    [(1, 1, 1, "direct"), (1, 1, 500, "staged"), (2, 1, 1, "staged"), (1, 2, 1, "packed"), (1, 2, 500, "staged")],
)
def test_the_cheapest_way_is_chosen(src: int, dst: int, runs: int, way: str) -> None:
    """Long runs go straight; rows that the receiver holds in one piece are only packed; the rest is staged."""
    assert choose(load(src, dst, 500, runs), "tcp", 4 << 20) == way


def test_no_staging_without_an_area_and_none_where_blocks_cost_nothing() -> None:
    without = possible(sender_copies=True, receiver_copies=True, staging=False)
    assert choose(load(2, 1, 500, 1), "tcp", 4 << 20, without) == "direct"
    assert choose(load(2, 1, 1, 1), "rdma", 4 << 20) == "direct"
    assert choose(load(1, 1, 0, 0), "tcp", 4 << 20) == "direct"


def test_no_way_is_taken_that_a_side_cannot_go() -> None:
    """Where the sender cannot gather all goes straight; where the receiver cannot scatter, nothing is staged."""
    for src, dst in ((1, 1), (2, 1), (1, 2)):
        for items, runs in ((1, 1), (500, 1), (500, 500)):
            this = load(src, dst, items, runs)
            for staging in (True, False):
                gathers_not = possible(sender_copies=False, receiver_copies=True, staging=staging)
                scatters_not = possible(sender_copies=True, receiver_copies=False, staging=staging)
                assert choose(this, "tcp", 4 << 20, gathers_not) == "direct"
                assert choose(this, "tcp", 4 << 20, scatters_not) != "staged"


def test_an_item_larger_than_a_slot_is_never_staged() -> None:
    assert choose(load(2, 1, 500, 500), "tcp", 512) == "direct"


def test_prices_of_every_transport() -> None:
    """More blocks never cost less."""
    for price in cost.PRICES.values():
        assert seconds(load(2, 1, 500, 1), "direct", price, 1 << 20) > seconds(
            load(2, 1, 5, 1), "direct", price, 1 << 20
        )

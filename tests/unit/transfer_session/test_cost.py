"""What is priced is what runs: for every way, the blocks that the cost model counts are those that are written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.layout.algebra import item_len
from pdctl_transfer.layout.manifest import Component, Entry, Group, Manifest, Stage
from pdctl_transfer.plan import RankId, bind
from pdctl_transfer.session import Rank
from pdctl_transfer.session.bytes import packing
from pdctl_transfer.session.bytes.copier import NumpyCopier
from pdctl_transfer.session.bytes.cost import WAYS, Effort, Load, Way, choose, effort, resolve
from pdctl_transfer.session.bytes.packing import chunks, pieces
from pdctl_transfer.session.bytes.work import KEPT, PairPlan, Part, joined, straight_blocks
from pdctl_transfer.session.bytes.writer import gathered, packed_blocks, staged_blocks
from tests.unit.transfer_session.world import Buffers, manifest, spaced

HEADS, HEAD = 8, 32
LAYERS = 3


def kv(role: str, tp: int, page: int, layout: str, kinds: tuple[str, ...] = ("kv",)) -> Manifest:
    """K and V of three layers; NHD: a page is tokens of heads, HND: heads of tokens. One replicated latent a layer."""
    made = manifest(role, tp)
    outer, inner = (page, HEAD) if layout == "nhd" else (1, page * HEAD)
    split = [
        Entry(layer, tensor, "split", outer, (Group(HEADS, 1),), inner, 0) for layer in range(LAYERS) for tensor in "kv"
    ]
    whole = [Entry(layer, "latent", "replicated", page, (Group(1, 1),), 24, 0) for layer in range(LAYERS)]
    found = {"kv": split, "mla": whole}
    components = tuple(
        Component(kind, "page", tuple(replace(e, item_len=item_len(e, tp)) for e in found[kind])) for kind in kinds
    )
    return replace(made, page_size=page, stages=(Stage(0, (0, LAYERS), components),))


class Pair:
    """One prefill rank and one decode rank of a pair, with memory, and what is written from one to the other."""

    def __init__(self, here: Manifest, there: Manifest, items: int, gap: int = 0) -> None:
        plan = PairPlan(here, there)
        source, target = max(plan.links)
        memory = spaced(gap=gap)
        self.ours, self.theirs = memory(here, Rank(*source), items), memory(there, Rank(*target), items)
        self.here, self.there = tuple(self.ours.regions()), tuple(self.theirs.regions())
        self.part: Part = plan.part(source, target, self.here, self.there)
        self.copier = NumpyCopier(self.here)

    def written(self, kind: str, way: Way, ids: np.ndarray, their_ids: np.ndarray, chunk_bytes: int) -> Effort:
        """Made by the functions that jobs use."""
        ways = {kind: way}
        split = self.part.split(ways)
        straight = straight_blocks(self.part, ways, self.here, self.there, {kind: ids}, {kind: their_ids})
        blocks = [straight[kind]] if kind in straight else []
        copied = lent = 0
        scratch = self.copier.allocate(max(chunk_bytes, packing.PIECE_BYTES))
        for piece in pieces(split.packed.get(kind, ()), len(ids), chunk_bytes):
            copied += packing.chunk_bytes(piece)
            blocks.append(packed_blocks(self.copier, piece, ids, self.there, their_ids, scratch))
        for chunk in chunks(split.staged.get(kind, ()), len(ids), chunk_bytes):
            lent += 1
            short = gathered(chunk, ids)
            copied += packing.chunk_bytes(chunk) + sum(s.bytes for s, g in zip(chunk, short, strict=True) if g)
            blocks.append(staged_blocks(self.copier, chunk, ids, 1 << 40, scratch if any(short) else None))
        assert sum(int(some.length.sum()) for some in blocks) == self.load(kind, their_ids).bytes
        return Effort(sum(len(some.length) for some in blocks), copied, lent)

    def load(self, kind: str, theirs: np.ndarray, ours: np.ndarray | None = None) -> Load:
        return Load(self.part.strips[kind], theirs, ours)


def runs_of(rng: np.random.Generator, lengths: list[int], items: int) -> np.ndarray:
    """Ids in runs of these lengths, none next to the other, in any order."""
    slack = items - sum(lengths) - len(lengths)
    gaps = rng.multinomial(slack, [1 / len(lengths)] * len(lengths)) + 1
    starts = np.cumsum(gaps) + np.concatenate([[0], np.cumsum(lengths)[:-1]])
    order = rng.permutation(len(lengths))
    at = {int(n): np.arange(starts[i], starts[i] + lengths[n]) for n, i in enumerate(_fit(lengths, order))}
    return np.concatenate([at[n] for n in range(len(lengths))])


def _fit(lengths: list[int], order: np.ndarray) -> list[int]:
    """A permutation that keeps lengths where they are: equal ones change places."""
    places = list(range(len(lengths)))
    for i, j in enumerate(order.tolist()):
        if lengths[i] == lengths[j]:
            places[i], places[j] = places[j], places[i]
    return places


@pytest.mark.parametrize("gap", [0, 8])
@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize(("src", "dst"), [(1, 2), (2, 1), (1, 4), (4, 1), (1, 1), (2, 16)])
def test_the_blocks_that_are_priced_are_written(src: int, dst: int, page: int, layout: str, gap: int) -> None:
    """Exactly, where both sides' ids are known, or break at the same places. Where the sender's are scattered and
    decode cannot know it, what goes straight takes at least so many."""
    rng = np.random.default_rng(page)
    kinds = ("kv", "mla")
    pair = Pair(kv("prefill", src, page, layout, kinds), kv("decode", dst, page, layout, kinds), 512, gap)
    for lengths in ([200], [1] * 60, [7, 1, 30, 2, 2, 60], [1]):
        theirs, same = (runs_of(rng, lengths, 512) for _ in range(2))
        other = rng.permutation(512)[: len(theirs)]
        for kind in pair.part.kinds:
            for chunk_bytes in (1 << 24, 40_000):
                for way in WAYS:
                    if way == "packed" and any(strip.dst_run < 0 for strip in pair.part.strips[kind]):
                        continue
                    if any(strip.bytes > chunk_bytes for strip in pair.part.strips[kind]):
                        continue
                    priced = effort(pair.load(kind, theirs), way, chunk_bytes)
                    told = f"{kind} {way} {lengths} {chunk_bytes}"
                    assert priced == pair.written(kind, way, same, theirs, chunk_bytes), told
                    real = pair.written(kind, way, other, theirs, chunk_bytes)
                    assert effort(pair.load(kind, theirs, other), way, chunk_bytes) == real, told
                    assert priced.blocks <= real.blocks or way == "staged", told


@pytest.mark.parametrize(("src", "dst"), [(1, 2), (1, 4), (1, 8), (2, 8)])
@pytest.mark.parametrize("scattered", [False, True])
def test_at_page_size_1_rows_are_written_in_runs(src: int, dst: int, scattered: bool) -> None:
    """A token's share of the heads is in one piece on both sides; a block each is what the engines' own path costs."""
    pair = Pair(kv("prefill", src, 1, "nhd"), kv("decode", dst, 1, "nhd"), 4096)
    theirs = np.arange(4096)
    ours = np.random.default_rng(0).permutation(4096) if scattered else theirs
    assert choose(pair.load("kv", theirs), "tcp", 16 << 20) == "packed"
    assert choose(pair.load("kv", theirs), "rdma", 16 << 20) == "packed"
    strips, nbytes = 2 * LAYERS, pair.load("kv", theirs).bytes
    many = strips + len(pieces(pair.part.strips["kv"], 4096, 16 << 20))
    assert pair.written("kv", "packed", ours, theirs, 16 << 20).blocks <= many
    assert pair.written("kv", "direct", ours, theirs, 16 << 20) == Effort(strips * 4096)
    assert pair.written("kv", "packed", ours, theirs, 16 << 20).copied == nbytes


@pytest.mark.parametrize("page", [1, 16])
def test_the_sender_gathers_what_only_it_knows_to_be_scattered(page: int) -> None:
    """Equal TP: decode sees one run and asks for it straight, prefill's pages are all over its pool."""
    pair = Pair(kv("prefill", 1, page, "nhd"), kv("decode", 1, page, "nhd"), 1024)
    theirs = np.arange(1024)
    scattered = np.random.default_rng(0).permutation(1024)
    asked = choose(pair.load("kv", theirs), "tcp", 16 << 20)
    assert asked == "direct"

    def resolved(ours: np.ndarray, ways: dict[str, Way], copies: bool = True) -> dict[str, Way]:
        return resolve(ways, {"kv": pair.load("kv", theirs, ours)}, "tcp", 16 << 20, copies=copies)

    assert resolved(theirs, {"kv": "direct"}) == {"kv": "direct"}
    assert resolved(scattered, {"kv": "direct"}) == {"kv": "packed"}
    assert resolved(scattered, {}) == {"kv": "packed"}
    assert resolved(scattered, {"kv": "direct"}, copies=False) == {"kv": "direct"}
    assert resolved(scattered, {"kv": "staged", "mamba": "packed"}) == {"kv": "staged", "mamba": "packed"}
    direct = pair.written("kv", "direct", scattered, theirs, 16 << 20)
    packed = pair.written("kv", "packed", scattered, theirs, 16 << 20)
    assert direct.blocks > 50 * packed.blocks


def test_long_rows_are_not_gathered() -> None:
    """A copy of them costs more than the blocks that it would save."""
    pair = Pair(kv("prefill", 1, 512, "hnd"), kv("decode", 2, 512, "hnd"), 8)
    (strip, *_) = pair.part.strips["kv"]
    assert strip.bytes == strip.dst_step == packing.GATHER_BELOW
    assert pair.written("kv", "packed", np.arange(8), np.arange(8), 16 << 20) == Effort(2 * LAYERS * 8)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_kept_bindings_give_what_fresh_ones_give(data: st.DataObject) -> None:
    """From any thread, for any ids, also when another pair of memories comes in between."""
    tps = st.sampled_from([1, 2, 4])
    here, there = manifest("prefill", data.draw(tps)), manifest("decode", data.draw(tps))
    plan = PairPlan(here, there)
    source, target = data.draw(st.sampled_from(sorted(plan.links)))
    part = plan.part(source, target)
    ways = {kind: data.draw(st.sampled_from(["direct", "packed"])) for kind in part.kinds}
    ways = {kind: way for kind, way in ways.items() if all(strip.dst_run >= 0 for strip in part.strips[kind])}
    ours = [tuple(Buffers(here, Rank(*source), 16).regions()) for _ in range(2)]
    theirs = [tuple(Buffers(there, Rank(*target), 16).regions()) for _ in range(2)]
    for turn in range(8):
        mine, other = ours[turn % 2], theirs[turn // 2 % 2]
        rng = np.random.default_rng(turn)
        count = data.draw(st.integers(0, 16))
        ids = [dict.fromkeys(part.kinds, rng.permutation(16)[:count]) for _ in range(2)]
        fresh = {kind: bind(direct, mine, other, *ids) for kind, direct in part.split(ways).direct.items()}
        kept = straight_blocks(part, ways, mine, other, *ids)
        assert kept.keys() == fresh.keys()
        for kind, blocks in kept.items():
            assert all(np.array_equal(a, b) for a, b in zip(blocks, fresh[kind], strict=True))
        assert np.array_equal(joined(kept.values()).dst, np.concatenate([[], *(b.dst for b in fresh.values())]))
    assert len(part._bound) == 4


def test_a_part_stays_bound_to_few_memories() -> None:
    """Decode engines that restart come with new ones each time."""
    plan = PairPlan(manifest("prefill", 1), manifest("decode", 1))
    part = plan.part(RankId(0, 0), RankId(0, 0))
    here = tuple(Buffers(plan.prefill, Rank(0, 0), 4).regions())
    there = [tuple(Buffers(plan.decode, Rank(0, 0), 4).regions()) for _ in range(KEPT + 5)]
    first = part.bindings({}, here, there[0])
    for regions in there:
        assert part.bindings({}, here, there[0]) is first, "the one in use is kept"
        part.bindings({}, here, regions)
    assert len(part._bound) == KEPT


def test_joined_blocks_of_nothing() -> None:
    assert [len(column) for column in joined([])] == [0, 0, 0]
    one = Blocks(*np.arange(6).reshape(3, 2))
    assert joined([one]) is one

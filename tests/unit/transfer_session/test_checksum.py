"""Checksums tell content, not cuts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pdctl_transfer.plan import RankId
from pdctl_transfer.session import Rank
from pdctl_transfer.session.bytes.checksum import Scattered, View, logical_sums, sums
from pdctl_transfer.session.bytes.copying import Memory
from pdctl_transfer.session.bytes.work import PairPlan
from tests.unit.transfer_session.world import Buffers, manifest, ranks

EVERY = {kind: [5, 2, 9] for kind in ("kv", "mamba", "qsa_pending", "qsa_compressed")}


def whole(tp: int, pp: int, room: int = 1) -> dict[str, int]:
    """Sums over all ranks of one side that holds the room."""
    made, total = manifest("prefill", tp, pp), dict.fromkeys(EVERY, 0)
    for rank in ranks(made):
        buffers = Buffers(made, rank, 16)
        buffers.fill(room, EVERY)
        for kind, value in logical_sums(made, rank, Memory(buffers.regions()), EVERY).items():
            total[kind] = (total[kind] + value) % (1 << 64)
    return total


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (8, 1), (2, 2), (1, 4)])
def test_equal_at_any_cut(tp: int, pp: int) -> None:
    """kv has 2 heads, so at TP 4 and 8 ranks hold copies that must not count twice."""
    assert whole(tp, pp) == whole(1, 1)
    assert whole(tp, pp, room=2) != whole(1, 1)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.data())
def test_any_changed_byte_is_told_by_the_full_sum(src: int, dst: int, data: st.DataObject) -> None:
    """What the sources add up to is what the destination holds, and no longer after one byte changed."""
    pair = PairPlan(manifest("prefill", src), manifest("decode", dst))
    target = data.draw(st.sampled_from(sorted({d for _, d in pair.links})))
    receiver = Buffers(pair.decode, Rank(*target), 16)
    receiver.fill(1, EVERY)
    sent = dict.fromkeys(EVERY, 0)
    for source in pair.prefill_ranks(target):
        sender = Buffers(pair.prefill, Rank(*source), 16)
        sender.fill(1, EVERY)
        for kind, value in total(pair, source, target, sender, "prefill").items():
            sent[kind] = (sent[kind] + value) % (1 << 64)

    def held() -> dict[str, int]:
        found = dict.fromkeys(EVERY, 0)
        for source in pair.prefill_ranks(target):
            for kind, value in total(pair, source, target, receiver, "decode").items():
                found[kind] = (found[kind] + value) % (1 << 64)
        return found

    assert held() == sent
    at = data.draw(st.integers(0, len(receiver.arrays) - 1))
    kind = receiver.entries()[at][0]
    item = data.draw(st.sampled_from(EVERY[kind]))
    byte = data.draw(st.integers(0, receiver.arrays[at].shape[1] - 1))
    receiver.arrays[at][item, byte] ^= data.draw(st.integers(1, 255))
    assert held()[kind] != sent[kind]


def total(pair: PairPlan, source: RankId, target: RankId, buffers: Buffers, side: str) -> dict[str, int]:
    ids = {kind: np.array(values) for kind, values in EVERY.items()}
    return sums(pair.part(source, target), Memory(buffers.regions()), ids, "full", side)  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_sample_is_the_same_wherever_regions_lie(tp: int) -> None:
    """Also where words of several regions stand at no distance of whole words, so that each is looked at by itself."""
    pair = PairPlan(manifest("prefill", tp), manifest("decode", tp))
    part = pair.part(RankId(0, 0), RankId(0, 0))
    buffers = Buffers(pair.decode, Rank(0, 0), 16)
    buffers.fill(1, EVERY)
    ids = {kind: np.array(values) for kind, values in EVERY.items()}
    expected = sums(part, Memory(buffers.regions()), ids, "sample", "decode")
    odd = [np.zeros(array.nbytes + 8, np.uint8) for array in buffers.arrays]
    moved = []
    for number, (room, array, region) in enumerate(zip(odd, buffers.arrays, buffers.regions(), strict=True)):
        room[number % 8 : number % 8 + array.nbytes] = array.reshape(-1)
        moved.append(replace(region, base=room.ctypes.data + number % 8))
    assert sums(part, Memory(moved), ids, "sample", "decode") == expected


def test_a_request_of_many_entries_is_one_look_a_word_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at each entry by itself took a millisecond a request with 32 layers, on both sides."""
    pair = PairPlan(manifest("prefill", 1), manifest("decode", 1))
    looks: list[str] = []
    for cls in (View, Scattered):
        monkeypatch.setattr(cls, "sum", lambda self, ids: looks.append(type(self).__name__) or 0)
    part = pair.part(RankId(0, 0), RankId(0, 0))
    memory = Memory(Buffers(pair.decode, Rank(0, 0), 16).regions())
    sums(part, memory, {"kv": np.array([1])}, "sample", "decode")
    assert looks == ["Scattered"]
    sums(part, memory, {"mamba": np.array([1])}, "sample", "decode")
    assert looks[1:] == ["Scattered"] * 2, "words of 2 bytes, and of 8"


def test_swapped_pages_are_told() -> None:
    """The right bytes in each other's place."""
    made = manifest("decode", 1)
    buffers = Buffers(made, Rank(0, 0), 16)
    buffers.fill(1, EVERY)
    before = logical_sums(made, Rank(0, 0), Memory(buffers.regions()), EVERY)
    buffers.arrays[0][[5, 2]] = buffers.arrays[0][[2, 5]]
    after = logical_sums(made, Rank(0, 0), Memory(buffers.regions()), EVERY)
    assert [kind for kind in before if before[kind] != after[kind]] == [
        "kv" if made.stages[0].components[0].entries else ""
    ]

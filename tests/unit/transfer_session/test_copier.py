"""What touches bytes asks the copier: torch gives what numpy gives, and memory out of reach is refused, not touched."""

import ctypes
import mmap
import os
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.fabric.base import Blocks, Transport
from pdctl_transfer.fabric.memory import MemoryFabric, MemoryWriting
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank, Region
from pdctl_transfer.session.bytes.checksum import logical_sums
from pdctl_transfer.session.bytes.copier import Copier, NoCopier, NumpyCopier, default_copier
from pdctl_transfer.session.bytes.copying import Lot, Memory, at_address
from pdctl_transfer.session.bytes.packing import chunk_bytes, chunks
from pdctl_transfer.session.bytes.torch_copier import TorchCopier
from pdctl_transfer.session.bytes.work import PairPlan
from pdctl_transfer.session.drive import landing, link
from tests.unit.transfer_session.test_requests import end
from tests.unit.transfer_session.world import FAST, Buffers, World, manifest, spaced

ITEMS = 16
KINDS = ("kv", "mamba", "qsa_pending", "qsa_compressed")


def with_torch(buffers: Any, by: str) -> TorchCopier:
    """Over the engine's tensors, or over addresses."""
    if by == "address":
        return TorchCopier(buffers.regions())
    return TorchCopier(buffers.regions(), [torch.from_numpy(array) for array in buffers.arrays])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_torch_gives_the_bytes_and_the_sums_that_numpy_gives(data: st.DataObject) -> None:
    """Over cuts, id lists, chunk sizes, odd addresses, items apart, shares of a scatter, and both kinds of sums."""
    tps, shifts = st.sampled_from([1, 2, 4]), st.sampled_from([0, 1, 2, 4, 6])
    gaps = st.sampled_from([0, 1, 8, 40])
    by = data.draw(st.sampled_from(["address", "tensor"]))
    here, there = manifest("prefill", data.draw(tps)), manifest("decode", data.draw(tps))
    pair = PairPlan(here, there)
    source, target = data.draw(st.sampled_from(sorted(pair.links)))
    count, limit = data.draw(st.integers(1, 12)), data.draw(st.integers(200, 5000))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    ours, theirs = (rng.permutation(ITEMS)[:count] for _ in range(2))
    sender = spaced(data.draw(shifts), data.draw(gaps))(here, Rank(*source), ITEMS)
    for array in sender.arrays:
        array[:] = rng.integers(0, 256, array.shape, np.uint8)
    receiver_at, share = (data.draw(shifts), data.draw(gaps)), data.draw(st.integers(1, 3))
    theirs_at = spaced(*receiver_at)(there, Rank(*target), ITEMS).regions()
    part = pair.part(source, target, tuple(sender.regions()), tuple(theirs_at))
    results = []
    moves = dict.fromkeys(KINDS, ours), dict.fromkeys(KINDS, theirs)
    for torch_does in (False, True):
        receiver = spaced(*receiver_at)(there, Rank(*target), ITEMS)
        copiers: list[Copier] = [
            with_torch(held, by) if torch_does else NumpyCopier(held.regions()) for held in (sender, receiver)
        ]
        packed = b""
        for kind in part.kinds:
            for chunk in chunks(part.strips[kind], count, limit):
                buffer = copiers[0].allocate(chunk_bytes(chunk) + 8).part(3, chunk_bytes(chunk))
                for segment in chunk:
                    copiers[0].gather(segment, ours, buffer)
                copiers[0].done()
                packed += at_address(buffer.base, buffer.nbytes).tobytes()
                for number in range(share):
                    copiers[1].scatter([Lot(chunk, theirs, buffer)], number, share)
                copiers[1].done()
        found = [
            copier.sums(part, ids, how, side)
            for copier, ids, side in zip(copiers, moves, ("prefill", "decode"), strict=True)
            for how in ("none", "sample", "full")
        ]
        assert found[1:3] == found[4:6], "what was sent is not what landed"
        results.append((packed, [whole.tobytes() for whole in receiver.whole], found))
    assert results[0] == results[1]


@pytest.mark.parametrize(("src", "dst"), [(1, 2), (2, 1), (1, 1)])
@pytest.mark.parametrize("way", ["direct", "packed", "staged"])
def test_requests_through_torch(src: int, dst: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides, every byte, each way."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: way)
    full = replace(FAST, verify="full", chunk_bytes=4096)
    copier = lambda buffers: with_torch(buffers, "tensor")  # noqa: E731
    with World(manifest("prefill", src), manifest("decode", dst), full, copier=copier) as w:
        senders, receivers, wrong = w.transfer()
        assert {handle.wait(20) for handle in [*senders, *receivers]} == {"confirmed"}
        assert wrong() == []


# Memory that the CPU cannot reach: PROT_NONE addresses, and a second mapping by which a NIC would.

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Device(Buffers):
    """A device's memory: `regions` gives addresses at which any access by the CPU is a segmentation fault."""

    maps: ClassVar[list[tuple[int, int, int]]] = []

    def __post_init__(self) -> None:
        self.arrays, self.bases = [], []
        for _, e in self.entries():
            size = -(-self.items * e.item_len // mmap.PAGESIZE) * mmap.PAGESIZE
            fd = os.memfd_create("device")
            os.ftruncate(fd, size)
            real, none = (
                libc.mmap(None, size, allowed, mmap.MAP_SHARED, fd, 0)
                for allowed in (mmap.PROT_READ | mmap.PROT_WRITE, 0)
            )
            os.close(fd)
            array = at_address(real, self.items * e.item_len).reshape(self.items, e.item_len)
            array[:] = 0xEE
            self.arrays.append(array)
            self.bases.append(none)
            Device.maps.append((none, size, real))

    def regions(self) -> list[Region]:
        return [Region(at, len(a), a.shape[1], "cuda:0") for at, a in zip(self.bases, self.arrays, strict=True)]


def by_nic(at: int) -> int:
    return next((real + at - none for none, size, real in Device.maps if none <= at < none + size), at)


class Nic(MemoryFabric):
    """Reaches device memory as well as the CPU's."""

    carries: Transport = "memory"

    def begin(self, peer: Any, blocks: Blocks) -> MemoryWriting:
        for dst, length in zip(blocks.dst.tolist(), blocks.length.tolist(), strict=True):
            assert peer.allows(dst, length)
        src, dst = (np.array([by_nic(at) for at in column.tolist()]) for column in (blocks.src, blocks.dst))
        writing = super().begin(peer, Blocks(src, dst, blocks.length))
        writing._peer = Everywhere(peer)
        return writing

    def observed_transport(self) -> Transport:
        return self.carries


class Everywhere:
    """The peer, for blocks that were looked at before they were translated."""

    def __init__(self, peer: MemoryFabric) -> None:
        self.name, self.open, self.allows = peer.name, True, lambda at, length: True


@pytest.fixture(autouse=True)
def unmapped() -> Any:
    yield
    for none, size, real in Device.maps:
        libc.munmap(none, size)
        libc.munmap(real, size)
    Device.maps.clear()


UNSEEN = replace(FAST, verify="none")


@pytest.mark.parametrize("carries", ["tcp", "rdma"])
@pytest.mark.parametrize(("src", "dst"), [(1, 1), (1, 2), (2, 1), (4, 1)])
def test_memory_out_of_reach_goes_straight_whatever_that_costs(src: int, dst: int, carries: str) -> None:
    fabric = type("Carrying", (Nic,), {"carries": carries})
    with World(manifest("prefill", src), manifest("decode", dst), UNSEEN, fabric, memory=Device) as w:
        senders, receivers, wrong = w.transfer()
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"confirmed"}
        assert wrong() == []
        for peer, _ in w.prefill.values():
            assert peer.telemetry.exposition().count('way="direct"') > 0
            assert 'way="packed"' not in peer.telemetry.exposition()
            assert 'way="staged"' not in peer.telemetry.exposition()


@pytest.mark.code("PD4016")
@pytest.mark.parametrize("asked", ["packed", "staged", "sample"])
def test_what_an_older_decode_asks_of_such_memory_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know what `copies` says."""
    if asked == "sample":
        monkeypatch.setattr(link, "unsummed", lambda me, hello: "")
    else:
        monkeypatch.setattr(landing, "choose", lambda *args, **more: asked)
    with World(manifest("prefill", 1), manifest("decode", 2), UNSEEN, Nic, memory=Device) as w:
        for peer, _ in w.decode.values():
            options = replace(UNSEEN, verify=asked) if asked == "sample" else UNSEEN
            peer._driver.options = options
            peer._driver.me = replace(peer._driver.me, options=options)
        senders, receivers, _ = w.transfer()
        assert {end(handle) for handle in [*senders, *receivers]} == {("PD4016", "prefill")}


@pytest.mark.code("PD4016")
@pytest.mark.parametrize("verify", ["sample", "full"])
def test_a_check_that_nobody_can_make_is_refused_before_anything_starts(verify: str) -> None:
    options = replace(FAST, verify=verify)
    device = Device(manifest("prefill", 1), Rank(0, 0), 4)
    with pytest.raises(TransferError, match=r"cuda:0.*no copier") as caught:
        PrefillPeer(device.manifest, Rank(0, 0), device.regions(), Nic(), registry=("127.0.0.1", 1), options=options)
    assert caught.value.code == "PD4016"
    device = Device(manifest("decode", 1), Rank(0, 0), 4)
    with pytest.raises(TransferError, match=r"decode pp0/tp0: verify is .*cuda:0") as caught:
        DecodePeer(device.manifest, Rank(0, 0), device.regions(), Nic(), options)
    assert caught.value.code == "PD4016"


@pytest.mark.code("PD4016")
def test_a_check_that_only_decode_can_make_is_refused_by_the_handshake() -> None:
    """Prefill has no copier and wants no check, decode wants one: nothing moves, and both say whose memory it is."""
    unseen = Device(manifest("prefill", 1), Rank(0, 0), 64)
    with World(manifest("prefill", 1), manifest("decode", 1), UNSEEN, Nic) as w:
        for peer, _ in w.prefill.values():
            peer._driver.me = replace(peer._driver.me, copier=NoCopier(unseen.regions()))
        for peer, _ in w.decode.values():
            peer._driver.me = replace(peer._driver.me, options=replace(UNSEEN, verify="sample"))
        senders, receivers, _ = w.transfer()
        assert {end(handle)[0] for handle in [*senders, *receivers]} == {"PD4016"}
        assert end(receivers[0]) == ("PD4016", "prefill")


@pytest.mark.code("PD4016")
def test_every_touch_of_memory_out_of_reach_is_refused() -> None:
    made = manifest("prefill", 2)
    device = Device(made, Rank(0, 0), 4)
    copier: Any = default_copier(device.regions())
    pair = PairPlan(made, manifest("decode", 1))
    part = pair.part(*sorted(pair.links)[0])
    ids = np.arange(2)
    chunk = chunks(part.strips["kv"], 2, 1 << 20)[0]
    buffer = NumpyCopier(()).allocate(chunk_bytes(chunk))
    touches = (
        lambda: copier.allocate(8),
        lambda: copier.gather(chunk[0], ids, buffer),
        lambda: copier.scatter([Lot(chunk, ids, buffer)]),
        lambda: copier.sums(part, {"kv": ids}, "sample", "prefill"),
        lambda: NumpyCopier(device.regions()),
        lambda: logical_sums(made, Rank(0, 0), Memory(device.regions()), {kind: [0] for kind in KINDS}),
        lambda: TorchCopier([replace(region, where="xpu:0") for region in device.regions()]),
    )
    for touch in touches:
        with pytest.raises(TransferError) as caught:
            touch()
        assert caught.value.code == "PD4016"
    assert copier.sums(part, {"kv": ids}, "none", "prefill") == {}
    copier.done()


@pytest.mark.code("PD4022")
def test_a_copier_of_other_memory_is_refused() -> None:
    made = manifest("decode", 1)
    buffers, other = (Buffers(made, Rank(0, 0), 4) for _ in range(2))
    with pytest.raises(TransferError, match="other regions") as caught:
        DecodePeer(made, Rank(0, 0), buffers.regions(), MemoryFabric(), copier=NumpyCopier(other.regions()))
    assert caught.value.code == "PD4022"
    tensors = [torch.from_numpy(array) for array in other.arrays]
    mixed = [replace(buffers.regions()[0], where="cuda:0"), *buffers.regions()[1:]]
    for regions, held in ((buffers.regions(), tensors), (other.regions(), tensors[1:]), (mixed, None)):
        with pytest.raises(TransferError) as caught:
            TorchCopier(regions, held)
        assert caught.value.code == "PD4022"


@pytest.mark.code("PD4014")
@pytest.mark.parametrize("copier", [NumpyCopier(()), TorchCopier(())])
def test_memory_that_there_is_not_is_named(copier: Copier) -> None:
    with pytest.raises(FabricError, match="no memory for") as caught:
        copier.allocate(1 << 60)
    assert caught.value.code == "PD4014"

"""Memory of a device is an engine's tensors, and what is asked of a device happens later: nothing may leave, and
nothing be confirmed, before it has happened."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.session import Rank, Region
from pdctl_transfer.session.bytes.copier import NoCopier, NumpyCopier
from pdctl_transfer.session.bytes.device import Cuda, device_of
from pdctl_transfer.session.bytes.packing import chunk_bytes, chunks
from pdctl_transfer.session.bytes.tensors import copier_for, place, tensors_of, torch_copier
from pdctl_transfer.session.bytes.torch_copier import TorchCopier
from pdctl_transfer.session.bytes.work import PairPlan
from pdctl_transfer.session.drive import landing
from tests.unit.transfer_session.test_installments import ids_of, sent
from tests.unit.transfer_session.world import FAST, Buffers, World, manifest, rooms, spaced

FULL = replace(FAST, verify="full", chunk_bytes=4096, staging_bytes=16384)
WAYS = ("direct", "packed", "staged")
TPS = [(1, 1), (1, 2), (2, 1), (4, 1)]


class Late(TorchCopier):
    """A device that does all of it when it must: in `done`, of the thread that waits, or before sums."""

    def __init__(self, regions: Any, tensors: Any) -> None:
        super().__init__(regions, tensors)
        self._asked = threading.local()
        self.events: list[Callable[[], None]] = []
        self._happening = threading.Lock()

    def after(self, event: Any) -> None:
        self.events.append(event)

    def _later(self, do: Callable[[], None]) -> None:
        self._asked.__dict__.setdefault("todo", []).append(do)

    def _now(self) -> None:
        with self._happening:
            while self.events:
                self.events.pop(0)()
        todo = self._asked.__dict__.setdefault("todo", [])
        while todo:
            todo.pop(0)()

    def gather(self, *asked: Any) -> None:
        self._later(lambda: TorchCopier.gather(self, *asked))

    def scatter(self, *asked: Any) -> None:
        self._later(lambda: TorchCopier.scatter(self, *asked))

    def sums(self, *asked: Any) -> dict[str, int]:
        self._now()
        return super().sums(*asked)

    def done(self) -> None:
        self._now()
        super().done()


def late(buffers: Buffers) -> Late:
    return Late(buffers.regions(), [torch.from_numpy(array) for array in buffers.arrays])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tps", TPS)
@pytest.mark.parametrize("verify", ["none", "sample", "full"])
def test_nothing_leaves_or_counts_before_the_device_has_done_it(
    tps: tuple[int, int], way: str, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy is begun in `done` alone, on both sides: who does not wait for it sends, or confirms, what was there."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: way)
    options = replace(FULL, verify=verify)
    with World(manifest("prefill", tps[0]), manifest("decode", tps[1]), options, copier=late) as world:
        senders, receivers, wrong = world.transfer()
        assert {handle.wait(20) for handle in receivers} == {"confirmed"}
        assert wrong() == []
        assert {handle.wait(20) for handle in senders} == {"confirmed"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verify", ["none", "full"])
def test_what_the_engines_step_has_yet_to_write_is_waited_for(
    way: str, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`send` is called before the step has ended, with its event: the state is there when the event has happened."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: way)
    options = replace(FULL, verify=verify)
    with World(manifest("prefill", 1), manifest("decode", 2), options, copier=late) as world:
        room, here, there = next(rooms), ids_of(world.prefill, 6, 1), ids_of(world.decode, 6, 2)
        receivers = [peer.open(room, world.at, there[rank]) for rank, (peer, _) in world.decode.items()]
        for rank, (peer, buffers) in world.prefill.items():
            copier: Any = peer._driver.me.copier
            copier.after(lambda held=buffers, at=rank: held.fill(room, here[at]))
            handle = peer.open(room)
            handle.send(here[rank], b"meta")
        assert {receiver.wait(20) for receiver in receivers} == {"confirmed"}
        assert [w for rank, (_, b) in world.decode.items() for w in b.wrong(room, there[rank])] == []


@pytest.mark.parametrize("verify", ["sample", "full"])
@pytest.mark.parametrize("way", [None, "staged"])
@pytest.mark.parametrize("tps", TPS)
def test_installments_of_an_engines_tensors(
    tps: tuple[int, int], way: str | None, verify: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items apart, as in a pool that layers share, with what lies between untouched; scratch and staging of torch."""
    if way:
        monkeypatch.setattr(landing, "choose", lambda *args, **more: way)
    options = replace(FULL, verify=verify)
    by_storage = lambda b: torch_copier([torch.from_numpy(whole) for whole in b.whole], b.regions())  # noqa: E731
    sides = manifest("prefill", tps[0]), manifest("decode", tps[1])
    with World(*sides, options, memory=spaced(gap=8), copier=by_storage) as world:
        room, here, there = next(rooms), ids_of(world.prefill, 6, 1), ids_of(world.decode, 6, 2)
        receivers = [peer.open(room, world.at, there[rank]) for rank, (peer, _) in world.decode.items()]
        for rank, (peer, buffers) in world.prefill.items():
            buffers.fill(room, here[rank])
            sent(peer.open(room), here[rank], (2, 5))
        assert {handle.wait(20) for handle in receivers} == {"confirmed"}
        assert [w for rank, (_, b) in world.decode.items() for w in b.wrong(room, there[rank])] == []
        assert all(b.gaps_untouched() and b.untouched(there[rank]) for rank, (_, b) in world.decode.items())


def test_an_abort_gives_the_devices_slots_back() -> None:
    with World(manifest("prefill", 4), manifest("decode", 1), FULL, copier=late) as world:
        room, there = next(rooms), ids_of(world.decode, 6, 2)
        receivers = [peer.open(room, world.at, there[rank]) for rank, (peer, _) in world.decode.items()]
        senders = [peer.open(room) for peer, _ in world.prefill.values()]
        receivers[0].abort("enough")
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"failed"}
        senders, receivers, wrong = world.transfer()
        assert {handle.wait(20) for handle in receivers} == {"confirmed"}
        assert wrong() == []
        for peer, _ in world.decode.values():
            assert peer._driver.area.free == peer._driver.area.slots


@pytest.mark.parametrize("who", ["prefill", "decode"])
@pytest.mark.parametrize("way", WAYS)
def test_an_abort_between_two_installments(way: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of it has been put into place: what decode lent comes back, its items may be used again, and are."""
    monkeypatch.setattr(landing, "choose", lambda *args, **more: way)
    with World(manifest("prefill", 2), manifest("decode", 1), FULL, copier=late) as world:
        room, here, there = next(rooms), ids_of(world.prefill, 6, 1), ids_of(world.decode, 6, 2)
        receivers = [peer.open(room, world.at, there[rank]) for rank, (peer, _) in world.decode.items()]
        senders = []
        for rank, (peer, buffers) in world.prefill.items():
            buffers.fill(room, here[rank])
            senders.append(peer.open(room))
            senders[-1].send({"kv": here[rank]["kv"][:3], "qsa_compressed": here[rank]["kv"][:3]}, last=False)
        assert until(lambda: receivers[0].state == "transferring")
        (senders if who == "prefill" else receivers)[0].abort("enough")
        assert {handle.wait(10) for handle in [*senders, *receivers]} == {"failed"}
        assert until(lambda: all(handle.reusable for handle in [*senders, *receivers]))
        for peer, _ in world.decode.values():
            assert until(lambda area=peer._driver.area: area.free == area.slots)
        _, receivers, wrong = world.transfer()
        assert {handle.wait(20) for handle in receivers} == {"confirmed"}
        assert wrong() == []


def until(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


def test_ids_go_to_the_device_once_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    made = manifest("prefill", 1)
    buffers = Buffers(made, Rank(0, 0), 16)
    copier = TorchCopier(buffers.regions(), [torch.from_numpy(array) for array in buffers.arrays])
    carried: list[Any] = []
    carry = copier._at.carried
    monkeypatch.setattr(copier._at, "carried", lambda numbers: carried.append(numbers) or carry(numbers))
    pair = PairPlan(made, manifest("decode", 2))
    part, ids = pair.part(*sorted(pair.links)[0]), np.arange(8)
    (chunk,) = chunks(part.strips["kv"], 8, 1 << 20)
    buffer = copier.allocate(chunk_bytes(chunk))
    assert len(chunk) == 8, "K and V of four layers"
    for _ in range(2):
        for segment in chunk:
            copier.gather(segment, ids, buffer)
        copier.done()
    assert len(carried) == 2


def test_engines_make_their_pools_under_inference_mode() -> None:
    """What is made within it cannot be written outside of it: the core's threads write, and are outside."""
    made = manifest("decode", 2)
    with torch.inference_mode():
        tensors = [torch.zeros(16, entry.item_len, dtype=torch.uint8) for _, entry in _entries(made)]
        regions = [Region(t.data_ptr(), len(t), t.shape[1]) for t in tensors]
        copiers = TorchCopier(regions, tensors), torch_copier({"pool": tensors}, regions)
        buffers = [copier.allocate(1 << 16) for copier in copiers]
    pair = PairPlan(manifest("prefill", 1), made)
    source, target = sorted(pair.links)[0]
    part, ids = pair.part(source, target), np.arange(8)
    (chunk,) = chunks(part.strips["kv"], 8, 1 << 20)
    for number, (copier, buffer) in enumerate(zip(copiers, buffers, strict=True)):
        buffer.owner.fill_(number + 1)  # type: ignore[attr-defined]
        copier.scatter([landing.Lot(chunk, ids, buffer)])
        copier.done()
        with torch.inference_mode():
            before = copier.sums(part, {"kv": ids}, "full", "decode")
        assert copier.sums(part, {"kv": ids}, "full", "decode") == before
        assert int(tensors[chunk[0].strip.dst_index][0].max()) == number + 1


def _entries(made: Any) -> list[tuple[str, Any]]:
    return Buffers(made, Rank(0, 0), 1).entries()


# From tensors to a copier


class Slotted:
    __slots__ = ("cache",)

    def __init__(self, cache: Any) -> None:
        self.cache = cache


class Pools(NamedTuple):
    kv: Any
    states: Any


def test_tensors_are_found_wherever_an_engine_keeps_them() -> None:
    """Pools within pools, by layer, in tuples of K and V; empty ones are none."""
    k, v, conv, temporal, latent = (torch.zeros(4, 8, dtype=torch.uint8) for _ in range(5))
    inner = SimpleNamespace(k_buffer=[k], v_buffer=(v,), name="pool", start_layer=0)
    inner.owner = inner  # a circle
    pools = {"full": Pools(inner, Slotted({0: conv, 1: [temporal]})), "mla": latent, "none": torch.zeros(0)}
    found = {tensor.data_ptr() for tensor in tensors_of([pools, torch, Slotted])}
    assert found == {t.data_ptr() for t in (k, v, conv, temporal, latent)}


def test_regions_that_share_a_storage_are_all_found_in_it() -> None:
    """One allocation for all layers, views of it, entries a page apart: vLLM's hybrid pools."""
    raw = torch.zeros(4096, dtype=torch.int8)
    view = raw.view(torch.bfloat16).as_strided((8, 16), (128, 1))
    base = raw.data_ptr()
    regions = [Region(base + 64 * n, 8, 32, stride=256) for n in range(3)]
    copier = torch_copier({"layers.0": view, "layers.1": [view[2:]]}, regions)
    assert {tensor.data_ptr() for tensor in copier._bytes} == {region.base for region in regions}
    assert copier_for({"layers.0": view}, regions, "cpu") is None, "numpy does it there"


@pytest.mark.code("PD2310")
@pytest.mark.parametrize("shift", [-8, 8, 1 << 20])
def test_memory_that_no_tensor_holds_is_refused(shift: int) -> None:
    raw = torch.zeros(1024, dtype=torch.uint8)
    with pytest.raises(TransferError, match="no tensor holds region 1") as caught:
        torch_copier([raw], [Region(raw.data_ptr(), 4, 256), Region(raw.data_ptr() + shift, 4, 256)])
    assert caught.value.code == "PD2310"


@pytest.mark.code("PD2310")
def test_tensors_on_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = torch.zeros(1024, dtype=torch.uint8)
    with pytest.raises(TransferError, match="should lie on cuda:1, its tensor lies on cpu") as caught:
        copier_for([raw], [Region(raw.data_ptr(), 4, 256)], torch.device("cuda:1"))
    assert caught.value.code == "PD2310"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert [place(given) for given in ("cpu", "cuda", "cuda:1", torch.device("cuda"))] == [
        "cpu",
        "cuda:3",
        "cuda:1",
        "cuda:3",
    ]


def test_the_cpu_has_nothing_to_wait_for_and_nobody_cannot_wait() -> None:
    NumpyCopier(()).after(object())
    TorchCopier(()).after(object())
    device = device_of(torch, "cpu")
    numbers = np.arange(3)
    carried = device.carried(numbers)
    numbers[:] = 9
    assert carried.tolist() == [0, 1, 2]
    with pytest.raises(TransferError) as caught:
        NoCopier([Region(0, 1, 1, "cuda:0")]).after(object())
    assert caught.value.code == "PD4016"


# The seam to CUDA, which no machine of ours has: which calls, in which order.


class Said:
    """Stands for torch on CUDA: notes what is called."""

    def __init__(self) -> None:
        self.log: list[str] = []
        said = self.log.append

        class Stream:
            def __init__(self, where: Any) -> None:
                said(f"stream on {where}")

            def wait_event(self, event: Any) -> None:
                said(f"stream waits for {event}")

            def __enter__(self) -> None:
                said("enter")

            def __exit__(self, *exc: object) -> None:
                said("leave")

        class Event:
            def __init__(self, *, blocking: bool) -> None:
                said(f"event blocking={blocking}")

            def record(self, stream: Any) -> None:
                said("recorded")

            def synchronize(self) -> None:
                said("waited")

        class Numbers:
            def pin_memory(self) -> "Numbers":
                said("pinned")
                return self

            def to(self, where: Any, *, non_blocking: bool) -> "Numbers":
                said(f"to {where} non_blocking={non_blocking}")
                return self

        self.cuda = SimpleNamespace(Stream=Stream, Event=Event, stream=lambda stream: stream)
        self.device = torch.device
        self.tensor = lambda numbers: Numbers()


def test_on_a_gpu_all_goes_by_one_stream_and_is_waited_for_by_event() -> None:
    said: Any = Said()
    device = device_of(said, "cuda:1")
    assert isinstance(device, Cuda)
    device.after("the step's event")
    with device.side():
        device.carried(np.arange(2))
    device.done()
    assert said.log == [
        "stream on cuda:1",
        "stream waits for the step's event",
        "enter",
        "pinned",
        "to cuda:1 non_blocking=True",
        "leave",
        "enter",
        "event blocking=True",
        "recorded",
        "leave",
        "waited",
    ]

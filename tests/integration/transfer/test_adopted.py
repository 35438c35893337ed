"""The fabric over a Mooncake engine that somebody else started, as inside SGLang, which goes on using it."""

import socket
import threading
from typing import Any

import numpy as np
import pytest

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Blocks, Deadline
from pdctl_transfer.fabric.mooncake import MooncakeFabric
from tests.integration.transfer.ranks import Host, Process, Spec, indices, pair, rooms
from tests.unit.transfer_session.world import Buffers, manifest, ranks

pytestmark = pytest.mark.integration
OWN = 4 << 20


class Counted:
    """An engine's TransferEngine, which remembers what it was asked to register and to forget."""

    def __init__(self) -> None:
        from mooncake.engine import TransferEngine

        self._engine = TransferEngine()
        assert self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.registered: list[int] = []
        self.forgotten: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def register_memory(self, base: int, nbytes: int) -> int:
        self.registered.append(base)
        return int(self._engine.register_memory(base, nbytes))

    def unregister_memory(self, base: int) -> int:
        self.forgotten.append(base)
        return int(self._engine.unregister_memory(base))


class Sharing(Host):
    """A side in the process of an engine that has registered its pools, and some memory of its own."""

    def __init__(self, spec: Spec) -> None:
        self.listening = socket.create_server(("0.0.0.0", 0))  # the engine's own, which is not Mooncake's
        self.engine = Counted()
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.memory = np.zeros(OWN, dtype=np.uint8)
        self.held = [(self.memory.ctypes.data, OWN)]
        self.engine.register_memory(*self.held[0])
        super().__init__(spec)

    def fabric_for(self, buffers: Buffers) -> Any:
        pools = [(array.ctypes.data, array.nbytes) for array in buffers.arrays]
        for base, nbytes in pools:
            assert self.engine.register_memory(base, nbytes) == 0
        self.held += pools
        fabric = MooncakeFabric.adopt(self.engine, self.session, pools, "rdma")
        inside = buffers.arrays[0]
        fabric.register(inside.ctypes.data + 64, 64)  # a part of what is held is held
        return fabric

    def where(self) -> tuple[str, int]:
        return self.session, self.memory.ctypes.data

    def ours_again(self) -> list[int]:
        """What the engine had registered, and was registered or forgotten once more."""
        held = [base for base, _ in self.held]
        twice = [base for base in held if self.engine.registered.count(base) != 1]
        inside = [b for b in self.engine.registered if any(at < b < at + n for at, n in self.held)]
        return twice + inside + [base for base in held if base in self.engine.forgotten]

    def left(self) -> list[int]:
        """What was registered by the core, and is still."""
        held = {base for base, _ in self.held}
        return sorted(set(self.engine.registered) - held - set(self.engine.forgotten))

    def engine_writes(self, there: tuple[str, int], blocks: int, value: int, nbytes: int = 512) -> int:
        """One batch of the engine's own; its status."""
        self.memory[:] = value
        session, base = there
        src, dst = ([at + i * nbytes for i in range(blocks)] for at in (self.memory.ctypes.data, base))
        return int(self.engine.batch_transfer_sync_write(session, src, dst, [nbytes] * blocks))

    def holds(self, nbytes: int, value: int) -> bool:
        return bool((self.memory[:nbytes] == value).all())

    def both_write(self, there: tuple[str, int], address: bytes, blocks: int, times: int) -> tuple[list[int], bool]:
        """The engine's batches of so many blocks, over and over, while the core writes without a pause."""
        fabric = self.fabrics[0]
        peer, session, base = fabric.connect(address), *there
        at = np.arange(4000) * 512
        mine = np.ones(OWN // 2, dtype=np.uint8)
        fabric.register(mine.ctypes.data, mine.nbytes)
        over, well = threading.Event(), []

        def core() -> None:
            while not over.is_set():
                write = Blocks(mine.ctypes.data + at, base + OWN // 2 + at, np.full_like(at, 512))
                well.append(fabric.write(peer, write, Deadline(30)).ok)

        thread = threading.Thread(target=core)
        thread.start()
        src, dst = ([start + i * 512 for i in range(blocks)] for start in (self.memory.ctypes.data, base))
        ended = [int(self.engine.batch_transfer_sync_write(session, src, dst, [512] * blocks)) for _ in range(times)]
        over.set()
        thread.join()
        fabric.deregister(mine.ctypes.data)
        return ended, all(well)

    def settled(self, address: bytes) -> bool:
        fabric = self.fabrics[0]
        return bool(fabric.settle(fabric.connect(address)))

    def mine(self) -> bytes:
        address: bytes = self.fabrics[0].address()
        return address

    def listeners(self) -> tuple[list[int], int, int]:
        """What is said to be exposed, the engine's port, and that of somebody else."""
        return self.exposed(), self.engine.get_rpc_port(), self.listening.getsockname()[1]

    def end_core(self) -> bool:
        over = all(peer.close() for peer in self.peers.values())
        for fabric in self.fabrics:
            fabric.close()
            fabric.close()
        return over

    def nowhere(self) -> tuple[str, list[int]]:
        """Adopting what does not listen: its code, and what the engine was asked to do."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        before = len(self.engine.registered)
        try:
            MooncakeFabric.adopt(self.engine, f"127.0.0.1:{port}", [])
        except FabricError as error:
            return error.code, self.engine.registered[before:]
        return "", []


def sides(lanes: str = "1", tp: tuple[int, int] = (4, 1)) -> tuple[Spec, Spec]:
    made = manifest("prefill", tp[0], scale=64), manifest("decode", tp[1], scale=64)
    environment = {"MC_TCP_LANES_PER_PEER": lanes, "MC_FORCE_TCP": "1"}
    one, other = (Spec(m, tuple(ranks(m)), environment=environment) for m in made)
    return one, other


@pytest.fixture(scope="module")
def both() -> Any:
    with pair(*sides(), Sharing) as processes:
        yield processes


def carry(prefill: Process, decode: Process, pages: int = 30) -> None:
    room = next(rooms)
    ours, theirs = indices(room, 64, pages), indices(room + 1000, 64, pages)
    decode.call("open", room, prefill.call("address"), theirs)
    prefill.call("send", room, ours)
    assert {end[0] for end in decode.call("wait", room) + prefill.call("wait", room)} == {"confirmed"}
    assert decode.call("wrong", room, theirs) == []


def test_state_arrives_whole_and_what_the_engine_registered_stays_as_it_is(both: tuple[Process, Process]) -> None:
    """Staged, so the core registers memory of its own as well."""
    for _ in range(3):
        carry(*both)
    for process in both:
        assert process.call("ours_again") == []
        assert process.call("left")
        assert process.call("observed") == {"tcp"}, "rdma was asked for"
        exposed, port, another = process.call("listeners")
        assert port in exposed
        assert another not in exposed
        assert len(set(exposed)) == 2


def test_engine_and_core_write_at_once_and_neither_is_refused(both: tuple[Process, Process]) -> None:
    """1,500 blocks of the engine's beside the core's: with as many as the core takes elsewhere, 2,000, Mooncake would
    refuse one or the other."""
    prefill, decode = both
    there, address = decode.call("where"), decode.call("mine")
    ended, well = prefill.call("both_write", there, address, 1500, 12)
    assert ended == [0] * 12
    assert well


def test_a_fence_proves_order_over_one_connection(both: tuple[Process, Process]) -> None:
    prefill, decode = both
    assert prefill.call("settled", decode.call("mine"))


def test_without_one_connection_a_peer_nothing_is_proven() -> None:
    """Fails if an engine that started with several is taken for one whose queue is in order."""
    with pair(*sides("4", (1, 1)), Sharing) as (prefill, decode):
        carry(prefill, decode)
        assert not prefill.call("settled", decode.call("mine"))


@pytest.mark.code("PD4017")
def test_an_engine_that_does_not_answer_is_not_called(both: tuple[Process, Process]) -> None:
    """Mooncake ends the process where it is called before it has started."""
    assert both[0].call("nowhere") == ("PD4017", [])


def test_the_engine_outlives_the_core() -> None:
    """Its memory stays registered and its writes work; nothing of the core's stays behind."""
    with pair(*sides(), Sharing) as (prefill, decode):
        carry(prefill, decode)
        assert prefill.call("end_core")
        assert decode.call("end_core")
        for process in (prefill, decode):
            assert process.call("ours_again") == []
            assert process.call("left") == []
        assert prefill.call("engine_writes", decode.call("where"), 100, 7) == 0
        assert decode.call("holds", 100 * 512, 7)

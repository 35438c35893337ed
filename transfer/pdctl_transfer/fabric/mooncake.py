"""Mooncake's transfer engine as a fabric.

What shapes it, all observed (0.3.13): more than 2048 queued blocks a peer are refused, so batches are cut and counted.
Its synchronous call spins on a core and cannot be interrupted, so batches are submitted and polled; the status of a
batch can only be asked by a call that spins too, so its last block goes by itself and is polled. After a failure
Mooncake goes on writing what it had queued; with one connection a peer its queue is in order, so a small write behind
it that arrives proves that the queue is empty. It falls back from RDMA to TCP without a word, so the transport is read
from the kernel. Calls before a successful `initialize` crash the process, so there is no object before it.
"""

import importlib
import os
import threading
import time
from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric import mooncake_self as itself
from pdctl_transfer.fabric.base import Blocks, Deadline, Transport, WriteResult, finish
from pdctl_transfer.fabric.evidence import holds_verbs, open_listeners
from pdctl_transfer.fabric.family import MODULE, bracketed, speak
from pdctl_transfer.fabric.mooncake_writing import POLL_S, TICKET_S, Address, Batch, MooncakePeer, MooncakeWriting

BATCH: Final = 1000
SHARED_BATCH: Final = 256
"""Where the engine's own writes stand in the same queue: two batches leave it 1536 of the 2048. No slower: 16,000
blocks of 512 bytes took 1.14 s in batches of 1000, 1.06 in such of 256, 1.14 of 128, 1.42 of 64."""
TELLING_BYTES: Final = 1 << 18
"""Batches of at least so much tell the rate."""
FENCE_S: Final = 1.0
FENCE_GAP_S: Final = 0.25
"""Between two fences: what a peer's sockets still held of an older connection lands before the second."""
LANES: Final = "MC_TCP_LANES_PER_PEER"

RUNNING, DONE = 0, 1
FAILED_IDS: Final = frozenset({0, (1 << 64) - 1})
"""What a submission returns instead of an id."""

_starting = threading.Lock()
_fences: Final[list[NDArray[np.uint8]]] = []
"""Of fabrics that were closed while their engine goes on: a late fence of a peer's lands in nothing else."""


class MooncakeFabric:
    """One engine, started here or adopted. `protocol` is what is asked for, `observed_transport` what came of it.

    Raises FabricError PD4010: the library or one of its libraries is missing, or the engine did not start.
    """

    kind = "mooncake"

    def __init__(self, host: str = "127.0.0.1", protocol: Literal["tcp", "rdma"] = "tcp", device: str = "") -> None:
        if protocol == "tcp":
            os.environ.setdefault("MC_FORCE_TCP", "1")
        os.environ.setdefault("MC_LOG_LEVEL", "WARNING")  # else a line for each batch
        os.environ.setdefault(LANES, "1")
        with _starting:
            host = speak(host)
            try:
                module = importlib.import_module(MODULE)
            except ImportError as error:
                raise FabricError(f"Mooncake cannot be imported: {error}") from error
            before = open_listeners()
            engine = module.TransferEngine()
            status = engine.initialize(host, "P2PHANDSHAKE", protocol, device)
            if status != 0:
                raise FabricError(f"Mooncake did not start on {host} with {protocol} (status {status})")
            self._ports = tuple(sorted(open_listeners() - before))
        self._observed: Transport = "rdma" if holds_verbs() else "tcp" if self._ports else "unknown"
        self._use(engine, f"{bracketed(host)}:{engine.get_rpc_port()}", protocol, BATCH)

    @classmethod
    def adopt(
        cls,
        engine: Any,
        session: str,
        held: Iterable[tuple[int, int]] = (),
        protocol: Literal["tcp", "rdma"] = "tcp",
    ) -> "MooncakeFabric":
        """Share the started TransferEngine of an inference engine, whose session id is `session`, `host:port`.

        held: memory that it has registered, as pairs of base and bytes, and keeps so. What lies within is not
        registered again, and nothing but what this fabric registered is ever unregistered. `close` leaves the engine as
        it is. Its own writes share Mooncake's queue, so smaller batches are under way here than otherwise.

        `settle` proves something only where one connection a peer was asked for (`ordered`) before the engine started.

        Raises FabricError PD4017 where no such engine answers, PD4014 where it does not register the fence.
        """
        described = itself.describe(session)
        fabric = cls.__new__(cls)
        fabric._observed, fabric._ports = itself.transport(described), itself.ports(session, described)
        fabric._use(engine, session, protocol, SHARED_BATCH, adopted=True, held=tuple(held))
        return fabric

    def _use(
        self,
        engine: Any,
        session: str,
        protocol: Transport,
        batch: int,
        *,
        adopted: bool = False,
        held: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self._engine, self._session, self.requested, self.batch = engine, session, protocol, batch
        self._adopted, self._held = adopted, held
        self._in_order = os.environ.get(LANES) == "1"
        self._lock = threading.Lock()
        self._peers: dict[bytes, MooncakePeer] = {}
        self._own: set[int] = set()
        """Bases that were registered here."""
        self._fence = np.zeros(16, dtype=np.uint8)
        self.register(self._fence.ctypes.data, self._fence.nbytes)

    @staticmethod
    def ordered() -> None:
        """Ask for one connection a peer in this process, unless it says otherwise: to be called before an engine that
        will be adopted starts. Costs nothing that was measured on loopback, and lets `settle` prove something over TCP.
        """
        os.environ.setdefault(LANES, "1")

    def address(self) -> bytes:
        """Session id and where a fence may be written."""
        return msgspec.msgpack.encode(Address(self._session, self._fence.ctypes.data + 8))

    def register(self, base: int, nbytes: int, where: str = "cpu") -> None:
        """Register memory, unless the engine holds it already; Mooncake finds out where it lies. FabricError PD4014
        where Mooncake refuses it.
        """
        engine = self._alive()
        if any(at <= base and base + nbytes <= at + size for at, size in self._held):
            return
        status = engine.register_memory(base, nbytes)
        if status != 0:
            raise FabricError(f"Mooncake does not register {nbytes} bytes (status {status})", code="PD4014")
        with self._lock:
            self._own.add(base)

    def deregister(self, base: int) -> None:
        """Unregister memory that was registered here."""
        engine = self._engine
        with self._lock:
            if engine is None or base not in self._own:
                return
            self._own.discard(base)
        engine.unregister_memory(base)

    def connect(self, address: bytes) -> MooncakePeer:
        """Decode the address; Mooncake itself connects at the first write."""
        with self._lock:
            if address not in self._peers:
                try:
                    self._peers[address] = MooncakePeer(msgspec.msgpack.decode(address, type=Address))
                except msgspec.MsgspecError as error:
                    raise FabricError(f"not the address of a Mooncake peer: {error}", code="PD4011") from error
            return self._peers[address]

    def begin(self, peer: MooncakePeer, blocks: Blocks) -> "MooncakeWriting":
        """A write in batches, two at a time."""
        return MooncakeWriting(self, peer, blocks)

    def write(self, peer: MooncakePeer, blocks: Blocks, deadline: Deadline) -> WriteResult:
        """Write to the end, or leave it at the deadline."""
        return finish(self.begin(peer, blocks), deadline)

    def submit(self, peer: MooncakePeer, blocks: Blocks) -> Batch | None:
        engine = self._alive()
        src, dst, length = (column.tolist() for column in blocks)
        body = 0
        if len(src) > 1:
            body = engine.batch_transfer_async_write(peer.name, src[:-1], dst[:-1], length[:-1])
            if body == 0:
                peer.tickets.release()
                return None
        tail = engine.transfer_submit_write(peer.name, src[-1], dst[-1], length[-1])
        if tail in FAILED_IDS:
            peer.pending.append(Batch(body, 0))
            return None
        return Batch(body, tail, sum(length), time.monotonic())

    def ended(self, peer: MooncakePeer, batch: Batch) -> bool | None:
        """Whether the batch went well, None while it goes on; not to be asked again once it has ended. Once the last
        block is done, so are the others over one connection; otherwise the second question waits for them.
        """
        engine = self._alive()
        status = engine.transfer_check_status(batch.tail)
        if status == RUNNING:
            return None
        took = time.monotonic() - batch.began
        if status == DONE and batch.nbytes > TELLING_BYTES:
            peer.rate += (batch.nbytes / took - peer.rate) / 4
        body = engine.get_batch_transfer_status([batch.body]) if batch.body else 0
        return bool(status == DONE and body == 0)

    def settle(self, peer: MooncakePeer) -> bool:
        """Nothing pending, then two fences through the peer's queue. No proof with several connections a peer."""
        with peer.settling:
            self._reap(peer)
            if peer.pending or not self._in_order or self._observed != "tcp":
                return False
            return self._fenced(peer) and self._fenced(peer, FENCE_GAP_S)

    def _reap(self, peer: MooncakePeer) -> None:
        """Forget pending batches that have ended. Of one whose last block was refused, the fence tells."""
        for batch in list(peer.pending):
            if batch.tail == 0 or self.ended(peer, batch) is not None:
                peer.pending.remove(batch)
                peer.tickets.release()

    def observed_transport(self) -> Transport:
        """RDMA where a verbs device is held open, else TCP where Mooncake listens."""
        return self._observed

    def exposed_ports(self) -> tuple[int, ...]:
        """Mooncake's RPC and data ports: they listen at every interface, whatever it is told."""
        return self._ports

    def close(self) -> None:
        """Drop the engine; it ends when no call runs in it any more, which takes it about a second. An adopted one goes
        on, without what was registered here.
        """
        if self._adopted and self._engine is not None:
            _fences.append(self._fence)
            for base in tuple(self._own):
                self.deregister(base)
        engine, self._engine = self._engine, None
        if engine is not None and not self._adopted:
            engine.unregister_memory(self._fence.ctypes.data)

    def _fenced(self, peer: MooncakePeer, after_s: float = 0.0) -> bool:
        """A word written behind everything else. Left pending where it does not arrive soon: asked again later."""
        time.sleep(after_s)
        if not peer.tickets.acquire(timeout=TICKET_S):
            return False
        batch = self.submit(peer, Blocks(*(np.array([v]) for v in (self._fence.ctypes.data, peer.fence, 8))))
        deadline = Deadline(FENCE_S)
        arrived = None
        while batch is not None and (arrived := self.ended(peer, batch)) is None and not deadline.passed:
            time.sleep(POLL_S[1])
        if batch is not None and arrived is None:
            peer.pending.append(batch)
        elif batch is not None:
            peer.tickets.release()
        return bool(arrived)

    def _alive(self) -> Any:
        engine = self._engine
        if engine is None:
            raise FabricError("this Mooncake fabric is closed")
        return engine

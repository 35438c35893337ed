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
from collections import deque
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import AHEAD, LEFT, Blocks, Deadline, Transport, WriteResult, batches, finish
from pdctl_transfer.fabric.evidence import holds_verbs, open_listeners
from pdctl_transfer.fabric.family import MODULE, bracketed, speak

BATCH: Final = 1000
TICKET_S: Final = 0.25
POLL_S: Final = (0.0001, 0.0005)
"""Pause between looks around the moment when a short batch should end by the peer's rate, and a long one."""
LATE_S: Final = 0.002
"""Longest pause after that moment."""
LONGEST_S: Final = 0.02
TELLING_BYTES: Final = 1 << 18
"""Batches of at least so much tell the rate."""
FENCE_S: Final = 1.0
FENCE_GAP_S: Final = 0.25
"""Between two fences: what a peer's sockets still held of an older connection lands before the second."""

RUNNING, DONE = 0, 1
FAILED_IDS: Final = frozenset({0, (1 << 64) - 1})
"""What a submission returns instead of an id."""

_starting = threading.Lock()


class Address(msgspec.Struct, frozen=True):
    """A session id, `host:port`, and a word of that engine's memory for fences."""

    name: str
    fence: int


class Batch(NamedTuple):
    """A submitted batch: all blocks but the last under one id, the last under its own. 0 where there is none."""

    body: int
    tail: int
    nbytes: int = 0
    began: float = 0.0


class MooncakePeer:
    """A peer, and what was submitted to it and has not ended."""

    def __init__(self, address: Address) -> None:
        self.name, self.fence = address.name, address.fence
        self.tickets = threading.Semaphore(AHEAD)
        """One for each batch under way, whoever writes it: together fewer blocks than Mooncake queues (2048)."""
        self.settling = threading.Lock()
        self.pending: list[Batch] = []
        """Batches whose writer gave up waiting; each keeps its ticket until it has ended."""
        self.rate = 1e9
        """Bytes a second of the last batches: when to look again."""


class MooncakeFabric:
    """One engine. `protocol` is what is asked for, `observed_transport` what came of it.

    Raises FabricError PD4010: the library or one of its libraries is missing, or the engine did not start.
    """

    kind = "mooncake"

    def __init__(self, host: str = "127.0.0.1", protocol: Literal["tcp", "rdma"] = "tcp", device: str = "") -> None:
        if protocol == "tcp":
            os.environ.setdefault("MC_FORCE_TCP", "1")
        os.environ.setdefault("MC_LOG_LEVEL", "WARNING")  # else a line for each batch
        self._in_order = os.environ.setdefault("MC_TCP_LANES_PER_PEER", "1") == "1"
        with _starting:
            host = speak(host)
            try:
                module = importlib.import_module(MODULE)
            except ImportError as error:
                raise FabricError(f"Mooncake cannot be imported: {error}") from error
        self.requested: Transport = protocol
        self._lock = threading.Lock()
        self._peers: dict[bytes, MooncakePeer] = {}
        with _starting:
            before = open_listeners()
            self._engine: Any = module.TransferEngine()
            status = self._engine.initialize(host, "P2PHANDSHAKE", protocol, device)
            if status != 0:
                self._engine = None
                raise FabricError(f"Mooncake did not start on {host} with {protocol} (status {status})")
            self._ports = tuple(sorted(open_listeners() - before))
        self._session = f"{bracketed(host)}:{self._engine.get_rpc_port()}"
        self._observed: Transport = "rdma" if holds_verbs() else "tcp" if self._ports else "unknown"
        self._fence = np.zeros(16, dtype=np.uint8)
        self.register(self._fence.ctypes.data, self._fence.nbytes)

    def address(self) -> bytes:
        """Session id and where a fence may be written."""
        return msgspec.msgpack.encode(Address(self._session, self._fence.ctypes.data + 8))

    def register(self, base: int, nbytes: int, where: str = "cpu") -> None:
        """Register memory; Mooncake finds out where it lies. FabricError PD4014 where Mooncake refuses it."""
        status = self._alive().register_memory(base, nbytes)
        if status != 0:
            raise FabricError(f"Mooncake does not register {nbytes} bytes (status {status})", code="PD4014")

    def deregister(self, base: int) -> None:
        """Unregister memory."""
        if self._engine is not None:
            self._engine.unregister_memory(base)

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
        """Drop the engine; it ends when no call runs in it any more, which takes it about a second."""
        engine, self._engine = self._engine, None
        if engine is not None:
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


class MooncakeWriting:
    """A write: at most AHEAD batches of all writes to a peer are under way. Mooncake has one status for all that can go
    wrong.
    """

    def __init__(self, fabric: MooncakeFabric, peer: MooncakePeer, blocks: Blocks) -> None:
        self._fabric, self._peer = fabric, peer
        self._left = deque(batches(blocks, BATCH))
        self._flying: deque[Batch] = deque()
        self._calls = 0
        self._ticket = False
        """A ticket is held for the next batch."""
        self._began = time.monotonic()

    def look(self) -> WriteResult | None:
        """Submit what the peer's tickets allow, and see what has ended."""
        while self._left or self._flying:
            if self._left and (self._ticket or self._peer.tickets.acquire(blocking=False)):
                self._ticket = False
                batch = self._fabric.submit(self._peer, self._left.popleft())
                self._calls += 1
                if batch is None:
                    return self._failed()
                self._flying.append(batch)
                continue
            ended = self._fabric.ended(self._peer, self._flying[0]) if self._flying else None
            if ended is None:
                return None
            self._flying.popleft()
            self._peer.tickets.release()
            if not ended:
                return self._failed()
        return WriteResult(ok=True, settled=True, calls=self._calls)

    def rest(self, deadline: Deadline) -> None:
        """Until a ticket is free, or for most of what the oldest batch should take still: slept as long as that, one
        would never be seen to end before the rate says, and the rate could only fall. Past that moment pauses grow with
        how late it is. A look costs a thread's wake-up, so the longer a batch takes, the less often.
        """
        if not self._flying:
            self._ticket = self._peer.tickets.acquire(timeout=min(TICKET_S, deadline.remaining))
            return
        batch = self._flying[0]
        expected = batch.nbytes / self._peer.rate
        left = batch.began + expected - time.monotonic()
        shortest = min(POLL_S[1], max(POLL_S[0], expected / 32))
        pause = left * 3 / 4 if left > 2 * shortest else min(LATE_S, max(shortest, -left / 4))
        time.sleep(min(LONGEST_S, pause, deadline.remaining))

    def leave(self) -> WriteResult:
        """What was submitted keeps its tickets until it has ended."""
        if self._ticket:
            self._peer.tickets.release()
        self._peer.pending += self._flying
        cause = f"{self._peer.name}: {LEFT}"
        return WriteResult(ok=False, settled=not self._flying, calls=self._calls, code="PD4031", cause=cause)

    def _failed(self) -> WriteResult:
        self._peer.pending += self._flying
        cause = f"Mooncake failed to write to {self._peer.name} after {time.monotonic() - self._began:.1f} s"
        return WriteResult(ok=False, settled=False, calls=self._calls, code="PD4011", cause=cause)

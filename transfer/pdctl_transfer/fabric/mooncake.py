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
from pdctl_transfer.fabric.base import Blocks, Deadline, Transport, WriteResult
from pdctl_transfer.fabric.evidence import holds_verbs, open_listeners

BATCH: Final = 1000
IN_FLIGHT: Final = 2
"""Batches submitted to one peer at a time: together fewer blocks than Mooncake queues (2048)."""
POLL_S: Final = (0.00002, 0.0003)
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


class MooncakePeer:
    """A peer, and what was submitted to it and has not ended. One thread writes to it at a time."""

    def __init__(self, address: Address) -> None:
        self.name, self.fence = address.name, address.fence
        self.turn = threading.Lock()
        self.pending: list[Batch] = []
        """Batches whose writer gave up waiting."""


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
        try:
            module = importlib.import_module("mooncake.engine")
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
        self._session = f"{host}:{self._engine.get_rpc_port()}"
        self._observed: Transport = "rdma" if holds_verbs() else "tcp" if self._ports else "unknown"
        self._fence = np.zeros(16, dtype=np.uint8)
        self.register(self._fence.ctypes.data, self._fence.nbytes)

    def address(self) -> bytes:
        """Session id and where a fence may be written."""
        return msgspec.msgpack.encode(Address(self._session, self._fence.ctypes.data + 8))

    def register(self, base: int, nbytes: int) -> None:
        """Register memory. FabricError PD4014 where Mooncake refuses it."""
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

    def write(self, peer: MooncakePeer, blocks: Blocks, deadline: Deadline) -> WriteResult:
        """Submit in batches, two at a time, and poll. Mooncake has one status for all that can go wrong."""
        if not peer.turn.acquire(timeout=deadline.remaining):
            return WriteResult(ok=False, settled=True, code="PD4031", cause=f"{peer.name} was busy until the deadline")
        try:
            return self._write(peer, blocks, deadline)
        finally:
            peer.turn.release()

    def _write(self, peer: MooncakePeer, blocks: Blocks, deadline: Deadline) -> WriteResult:
        total = len(blocks.length)
        began = time.monotonic()
        flying: deque[Batch] = deque()
        calls = at = 0
        while at < total or flying:
            if deadline.passed:
                peer.pending += flying
                return WriteResult(not flying, not flying, calls, "PD4031", f"{peer.name}: stopped at the deadline")
            if at < total and len(flying) < IN_FLIGHT:
                batch = self._submit(peer, Blocks(*(column[at : at + BATCH] for column in blocks)))
                calls, at = calls + 1, at + BATCH
                ok = batch is not None
                if batch is not None:
                    flying.append(batch)
                    continue
            else:
                status = self._poll(flying[0], deadline)
                if status is None:
                    continue
                flying.popleft()
                ok = status
            if not ok:
                peer.pending += flying
                cause = f"Mooncake failed to write to {peer.name} after {time.monotonic() - began:.1f} s"
                return WriteResult(ok=False, settled=False, calls=calls, code="PD4011", cause=cause)
        return WriteResult(ok=True, settled=True, calls=calls)

    def _submit(self, peer: MooncakePeer, blocks: Blocks) -> Batch | None:
        engine = self._alive()
        src, dst, length = (column.tolist() for column in blocks)
        body = 0
        if len(src) > 1:
            body = engine.batch_transfer_async_write(peer.name, src[:-1], dst[:-1], length[:-1])
            if body == 0:
                return None
        tail = engine.transfer_submit_write(peer.name, src[-1], dst[-1], length[-1])
        if tail in FAILED_IDS:
            peer.pending.append(Batch(body, 0))
            return None
        return Batch(body, tail)

    def _poll(self, batch: Batch, deadline: Deadline) -> bool | None:
        """Whether the batch went well, None where the deadline passed first. Once the last block is done, so are the
        others over one connection; otherwise the second question waits for them."""
        engine = self._alive()
        wait = POLL_S[0]
        while (status := engine.transfer_check_status(batch.tail)) == RUNNING:
            if deadline.passed:
                return None
            time.sleep(wait)
            wait = min(wait * 1.5, POLL_S[1])
        body = engine.get_batch_transfer_status([batch.body]) if batch.body else 0
        return status == DONE and body == 0

    def settle(self, peer: MooncakePeer) -> bool:
        """Nothing pending, then two fences through the peer's queue. No proof with several connections a peer."""
        if not self._in_order or self._observed != "tcp" or not peer.turn.acquire(timeout=1.0):
            return False
        try:
            now = Deadline(0.0)
            peer.pending = [batch for batch in peer.pending if batch.tail and self._poll(batch, now) is None]
            return not peer.pending and self._fenced(peer) and self._fenced(peer, FENCE_GAP_S)
        finally:
            peer.turn.release()

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
        word = (np.array([value]) for value in (self._fence.ctypes.data, peer.fence, 8))
        batch = self._submit(peer, Blocks(*word))
        if batch is None:
            return False
        arrived = self._poll(batch, Deadline(FENCE_S))
        if arrived is None:
            peer.pending.append(batch)
        return bool(arrived)

    def _alive(self) -> Any:
        engine = self._engine
        if engine is None:
            raise FabricError("this Mooncake fabric is closed")
        return engine

"""Mooncake's transfer engine as a fabric.

What shapes it, all observed (0.3.13): a batch of more than 2048 blocks is refused, so it is cut at 1024. After a
failure Mooncake goes on writing what it had queued; with one connection a peer its queue is in order, so a small write
behind it that arrives proves that the queue is empty. It falls back from RDMA to TCP without a word, so the transport
is read from the kernel. Calls before a successful `initialize` crash the process, so there is no object before it.
"""

import importlib
import os
import threading
import time
from typing import Any, Final, Literal

import msgspec
import numpy as np

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Blocks, Deadline, Transport, WriteResult
from pdctl_transfer.fabric.evidence import holds_verbs, open_listeners

BATCH: Final = 1024
FENCE_GAP_S: Final = 0.25
"""Between two fences: what a peer's sockets still held of an older connection lands before the second."""

_starting = threading.Lock()


class MooncakePeer(msgspec.Struct, frozen=True):
    """A peer: its session id, `host:port`, and a word of its memory for fences."""

    name: str
    fence: int


class MooncakeFabric:
    """One engine. `protocol` is what is asked for, `observed_transport` what came of it.

    Raises FabricError PD4010: the library or one of its libraries is missing, or the engine did not start.
    """

    kind = "mooncake"

    def __init__(self, host: str = "127.0.0.1", protocol: Literal["tcp", "rdma"] = "tcp", device: str = "") -> None:
        if protocol == "tcp":
            os.environ.setdefault("MC_FORCE_TCP", "1")
        self._in_order = os.environ.setdefault("MC_TCP_LANES_PER_PEER", "1") == "1"
        try:
            module = importlib.import_module("mooncake.engine")
        except ImportError as error:
            raise FabricError(f"Mooncake cannot be imported: {error}") from error
        self.requested: Transport = protocol
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
        return msgspec.msgpack.encode(MooncakePeer(self._session, self._fence.ctypes.data + 8))

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
        try:
            return msgspec.msgpack.decode(address, type=MooncakePeer)
        except msgspec.MsgspecError as error:
            raise FabricError(f"not the address of a Mooncake peer: {error}", code="PD4011") from error

    def write(self, peer: MooncakePeer, blocks: Blocks, deadline: Deadline) -> WriteResult:
        """Write in batches of 1024. Mooncake gives one status for all that can go wrong at the other end."""
        engine = self._alive()
        began = time.monotonic()
        total = len(blocks.length)
        for calls, at in enumerate(range(0, total, BATCH)):
            if deadline.passed:
                return WriteResult(ok=False, settled=True, calls=calls, code="PD4031", cause="stopped at the deadline")
            src, dst, length = (column[at : at + BATCH].tolist() for column in blocks)
            status = engine.batch_transfer_sync_write(peer.name, src, dst, length)
            if status != 0:
                took = time.monotonic() - began
                cause = f"Mooncake failed at block {at} of {total} to {peer.name} after {took:.1f} s (status {status})"
                return WriteResult(ok=False, settled=False, calls=calls + 1, code="PD4011", cause=cause)
        return WriteResult(ok=True, settled=True, calls=-(-total // BATCH))

    def settle(self, peer: MooncakePeer) -> bool:
        """Two fences through the peer's queue. Without proof over RDMA, or with several connections a peer."""
        if not self._in_order or self._observed != "tcp":
            return False
        return self._fenced(peer) and self._fenced(peer, FENCE_GAP_S)

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
        time.sleep(after_s)
        engine = self._engine
        if engine is None:
            return False
        return bool(engine.batch_transfer_sync_write(peer.name, [self._fence.ctypes.data], [peer.fence], [8]) == 0)

    def _alive(self) -> Any:
        engine = self._engine
        if engine is None:
            raise FabricError("this Mooncake fabric is closed")
        return engine

"""NIXL (UCX) as a fabric.

What shapes it, all observed (1.5.1): between two processes of one host UCX copies through the kernel and not over a
network, unless `UCX_TLS` says otherwise. A transfer to a frozen peer stays in progress for ever, one to deregistered
memory is reported done. Its RDMA plug-in crashes the interpreter's exit on hosts without RDMA. Its Python wrapper lets
the progress thread spin: an idle agent burns a core. So: transports are chosen before the import, the thread rests,
writes are polled against the deadline, and the receiver's word counts, not NIXL's.
"""

import importlib
import os
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import LEFT, Blocks, Deadline, Transport, WriteResult, batches, finish
from pdctl_transfer.fabric.evidence import has_gpu, has_verbs, holds_verbs, tcp_bytes_acked
from pdctl_transfer.fabric.nixl_memory import Places, Span, alike, both_sides, heard, memory_of, told
from pdctl_transfer.region import CPU

BATCH: Final = 8192
POLL_S: Final = (0.00005, 0.001)
TELLING_BYTES: Final = 1 << 16
"""A write of at least so much shows in the sockets which transport carried it."""
REST_US: Final = 1000
"""How long an agent's progress thread waits for events at most; one that comes wakes it."""
MODULES: Final = ("nixl_cu12._api", "nixl._api")


class NixlPeer(Struct):
    """A remote agent, transfers to it that did not end in time, and where its memory lies."""

    name: str
    pending: list[Any]
    places: Places


class NixlFabric:
    """One agent with the UCX backend. Raises FabricError PD4010 where NIXL is missing or does not start."""

    kind = "nixl"

    def __init__(self, protocol: Literal["tcp", "rdma", "any"] = "tcp") -> None:
        if protocol == "tcp":
            os.environ.setdefault("UCX_TLS", "tcp,self,cuda_copy" if has_gpu() else "tcp,self")
        if not has_verbs():
            os.environ.setdefault("UCX_MODULES", "^ib")
        self.requested: Transport = "unknown" if protocol == "any" else protocol
        self._lock = threading.Lock()
        self._observed: Transport = "unknown"
        self._registered: dict[int, Any] = {}
        self._places = Places()
        self._peers: dict[bytes, NixlPeer] = {}
        api = _module()
        self._failures = _failures(api)
        try:
            config = api.nixl_agent_config(backends=["UCX"])
            with _resting(api):
                self._agent: Any = api.nixl_agent(uuid.uuid4().hex, config)
        except self._failures as error:
            raise FabricError(f"NIXL did not start: {error}") from error

    def address(self) -> bytes:
        """The agent's metadata: names it, and holds the keys of all memory registered until now; with it, where memory
        of GPUs lies."""
        with self._lock:
            return told(self._alive().get_agent_metadata(), self._places)

    def register(self, base: int, nbytes: int, where: str = CPU) -> None:
        """Register memory; before the first link, since peers learn of it in the handshake. FabricError PD4014."""
        kind, device = memory_of(where)
        with self._lock:
            try:
                self._registered[base] = self._alive().register_memory([(base, nbytes, device, "")], mem_type=kind)
            except self._failures as error:
                raise FabricError(
                    f"NIXL does not register {nbytes} bytes on {where}: {error}", code="PD4014"
                ) from error
            if kind == "VRAM":
                self._places = self._places.adding(Span(base, nbytes, device))

    def deregister(self, base: int) -> None:
        """Unregister memory."""
        with self._lock:
            described = self._registered.pop(base, None)
            self._places = self._places.without(base)
            if described is not None and self._agent is not None:
                self._agent.deregister_memory(described)

    def connect(self, address: bytes) -> NixlPeer:
        """Load the peer's metadata. FabricError PD4011 where it is not metadata, or its agent cannot be reached."""
        with self._lock:
            if address not in self._peers:
                metadata, places = heard(address)
                try:
                    name = self._alive().add_remote_agent(metadata)
                except self._failures as error:
                    raise FabricError(f"NIXL cannot reach the peer: {error}", code="PD4011") from error
                self._peers[address] = NixlPeer(name.decode() if isinstance(name, bytes) else name, [], places)
            return self._peers[address]

    def begin(self, peer: NixlPeer, blocks: Blocks) -> "NixlWriting":
        """A write, batch by batch."""
        return NixlWriting(self, peer, blocks)

    def write(self, peer: NixlPeer, blocks: Blocks, deadline: Deadline) -> WriteResult:
        """Write to the end, or leave it at the deadline."""
        return finish(self.begin(peer, blocks), deadline)

    def settle(self, peer: NixlPeer) -> bool:
        """Whether every transfer to this peer has ended."""
        with self._lock:
            left = []
            for handle in peer.pending:
                if self._agent is not None and self._state(handle) == "PROC":
                    left.append(handle)
                else:
                    self._release(handle)
            peer.pending = left
            return not left

    def observed_transport(self) -> Transport:
        """Unknown before a first write large enough to tell, then what the kernel saw of it."""
        return self._observed

    def exposed_ports(self) -> tuple[int, ...]:
        """None that listen before a peer connects."""
        return ()

    def close(self) -> None:
        """Forget peers and memory, end the agent."""
        with self._lock:
            agent, self._agent = self._agent, None
            if agent is None:
                return
            for described in self._registered.values():
                agent.deregister_memory(described)
            self._registered.clear()
            self._peers.clear()

    def post(self, peer: NixlPeer, blocks: Blocks) -> tuple[Any, WriteResult | None]:
        """Handle of a transfer that has begun, or why NIXL refused it. Blocks of one kind of memory on each side."""
        sides = both_sides(blocks, self._places, peer.places)
        with self._lock:
            agent = self._alive()
            try:
                here, there = (agent.get_xfer_descs(side.rows, mem_type=side.kind) for side in sides)
                handle = agent.initialize_xfer("WRITE", here, there, peer.name)
                agent.transfer(handle)
            except self._failures as error:
                code = "PD4012" if "NotFound" in type(error).__name__ else "PD4011"
                cause = f"NIXL refused the write: {type(error).__name__} {error}"
                return None, WriteResult(ok=False, settled=True, code=code, cause=cause)
        return handle, None

    def cut(self, peer: NixlPeer, blocks: Blocks) -> Iterator[Blocks]:
        """The blocks in transfers that NIXL takes."""
        for some in alike(blocks, self._places, peer.places):
            yield from batches(some, BATCH)

    def state(self, handle: Any) -> str:
        """PROC while it goes on, DONE, or ERR; what has ended is released."""
        with self._lock:
            state = self._state(handle)
            if state != "PROC":
                self._release(handle)
        return state

    def _state(self, handle: Any) -> str:
        try:
            state: str = self._alive().check_xfer_state(handle)
        except self._failures:
            return "ERR"
        return state

    def _release(self, handle: Any) -> None:
        try:
            if self._agent is not None:
                self._agent.release_xfer_handle(handle)
        except self._failures:
            pass  # cannot be cancelled; it is freed with the agent

    def tell(self, acked: int, moved: int) -> None:
        """So many bytes were acknowledged over TCP while so many moved: the transport shows."""
        self._observed = "tcp" if acked >= moved else "rdma" if holds_verbs() else "shm"

    def _alive(self) -> Any:
        if self._agent is None:
            raise FabricError("this NIXL fabric is closed")
        return self._agent


class NixlWriting:
    """A write: one batch at a time."""

    def __init__(self, fabric: NixlFabric, peer: NixlPeer, blocks: Blocks) -> None:
        self._fabric, self._peer = fabric, peer
        self._bytes = int(blocks.length.sum())
        telling = fabric.observed_transport() == "unknown" and self._bytes >= TELLING_BYTES
        self._acked = tcp_bytes_acked() if telling else None
        self._left = deque(fabric.cut(peer, blocks))
        self._flying: Any = None
        self._calls = 0
        self._pause: float = POLL_S[0]

    def look(self) -> WriteResult | None:
        """See whether the batch has ended, post the next."""
        while True:
            if self._flying is not None:
                state = self._fabric.state(self._flying)
                if state == "PROC":
                    return None
                self._flying = None
                if state != "DONE":
                    cause = f"NIXL lost {self._peer.name[:8]} during the write"
                    return WriteResult(ok=False, settled=True, calls=self._calls, code="PD4011", cause=cause)
            if not self._left:
                break
            self._calls, self._pause = self._calls + 1, POLL_S[0]
            self._flying, refused = self._fabric.post(self._peer, self._left.popleft())
            if refused is not None:
                return replace(refused, calls=self._calls)
        if self._acked is not None:
            self._fabric.tell(tcp_bytes_acked() - self._acked, self._bytes)
        return WriteResult(ok=True, settled=True, calls=self._calls)

    def rest(self, deadline: Deadline) -> None:
        """A little longer each time."""
        time.sleep(min(self._pause, deadline.remaining))
        self._pause = min(self._pause * 1.5, POLL_S[1])

    def leave(self) -> WriteResult:
        """What was posted goes on until it has ended."""
        settled = self._flying is None
        if not settled:
            self._peer.pending.append(self._flying)
        cause = LEFT if settled else "NIXL was still writing at the deadline"
        return WriteResult(ok=False, settled=settled, calls=self._calls, code="PD4031", cause=cause)


_starting = threading.Lock()


@contextmanager
def _resting(api: Any) -> Iterator[None]:
    """Agents made meanwhile let their progress thread rest; the wrapper offers no way to say so (it sets 0).

    With a NIXL that is built otherwise nothing is changed: it works, and its thread may spin.
    """
    with _starting:
        known: Any = getattr(getattr(api, "nixlBind", None), "nixlAgentConfig", None)
        delay: Any = getattr(known, "pthrDelay", None)
        if not isinstance(delay, property):
            yield
            return

        class Config(known):  # type: ignore[misc]
            pthrDelay = property(delay.fget, lambda self, _: delay.fset(self, REST_US))  # noqa: N815  NIXL's name

        api.nixlBind.nixlAgentConfig = Config
        try:
            yield
        finally:
            api.nixlBind.nixlAgentConfig = known


def _module() -> Any:
    causes = []
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            causes.append(f"{name}: {error}")
    raise FabricError("NIXL cannot be imported: " + "; ".join(causes))


def _failures(api: Any) -> tuple[type[BaseException], ...]:
    """NIXL's exceptions share no base of their own."""
    found = [value for name, value in vars(api.nixlBind).items() if name.endswith("Error") and isinstance(value, type)]
    return (*found, RuntimeError, ValueError)

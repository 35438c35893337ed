"""The seam between sessions and whatever moves the bytes.

A fabric moves bytes between registered memory of two peers. It knows nothing of layers, heads or pages, and it is
honest: a write that failed says whether the fabric may still be writing, and the transport it reports is the one it
observed, never the one that was asked for.
"""

import time
from collections.abc import Iterator
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from pdctl_transfer.blocks import Blocks as Blocks
from pdctl_transfer.region import CPU

Transport = Literal["memory", "tcp", "rdma", "shm", "unknown"]


LEFT: Final = "stopped at the deadline"
AHEAD: Final = 2
"""Writes, or batches of one, that it pays to have under way to one peer: one moves, the next is there when it ends."""


class Deadline:
    """A moment on the monotonic clock, or earlier if somebody calls `cancel`. Safe from any thread."""

    __slots__ = ("_at", "_cancelled")

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._cancelled = False

    def cancel(self) -> None:
        """Let whoever works against this deadline stop at the next safe point."""
        self._cancelled = True

    @property
    def passed(self) -> bool:
        """True once the time is over or the work was cancelled."""
        return self._cancelled or time.monotonic() >= self._at

    @property
    def remaining(self) -> float:
        """Seconds left, 0.0 when passed."""
        return 0.0 if self._cancelled else max(0.0, self._at - time.monotonic())


class WriteResult(Struct, frozen=True):
    """What came of a write.

    ok: every block was accepted by the destination. settled: the fabric will write nothing more of it; False after a
    failure of which blocks may still be under way. calls: batches handed to the fabric. code and cause: of the failure.
    here: this side is to blame for it; False where that is the other side, or cannot be told.
    """

    ok: bool
    settled: bool
    calls: int = 0
    code: str = ""
    cause: str = ""
    here: bool = False


class Peer(Protocol):
    """A connected peer; only the fabric that made it knows more."""

    @property
    def name(self) -> str:
        """Host and port, or whatever tells this peer from others in a message."""
        ...


P = TypeVar("P", bound=Peer)


class Writing(Protocol):
    """A write that was begun. For one thread at a time."""

    def look(self) -> WriteResult | None:
        """Submit what may be submitted; the result once every block was accepted, or one failed. Not again after that.

        Meant to return at once, but may hold the thread for long where the fabric cannot be interrupted: callers
        abandon the thread and keep both buffers quarantined until it returns.
        """
        ...

    def rest(self, deadline: Deadline) -> None:
        """Sleep until it is worth to look again, not past the deadline."""
        ...

    def leave(self) -> WriteResult:
        """Submit nothing more, and leave what is under way to `Fabric.settle`: a failed result, PD4031."""
        ...


def finish(writing: Writing, deadline: Deadline) -> WriteResult:
    """Carry a write on to its end, or leave it when the deadline passes."""
    while not deadline.passed:
        result = writing.look()
        if result is not None:
            return result
        writing.rest(deadline)
    return writing.leave()


def batches(blocks: Blocks, limit: int) -> Iterator[Blocks]:
    """The same blocks in order, at most `limit` together."""
    for at in range(0, len(blocks.length), limit):
        yield Blocks(*(column[at : at + limit] for column in blocks)) if at or len(blocks.length) > limit else blocks


class FabricOf(Protocol[P]):
    """Moves bytes between registered memory of two peers. All methods may be called from any thread.

    It only takes the peers that it made itself, P.
    """

    @property
    def kind(self) -> str:
        """mooncake, nixl, memory: both sides of a pair must have the same."""
        ...

    @property
    def requested(self) -> Transport:
        """What was asked for."""
        ...

    def address(self) -> bytes:
        """What a peer needs to connect; sent to it during the handshake."""
        ...

    def register(self, base: int, nbytes: int, where: str = CPU) -> None:
        """Make memory known that lies there, in the words of `Region.where`. FabricError PD4014 when it is refused."""
        ...

    def deregister(self, base: int) -> None:
        """Forget memory that `register` was given; unknown memory is ignored."""
        ...

    def connect(self, address: bytes) -> P:
        """Reach a peer by its `address()`. Raises FabricError PD4011."""
        ...

    def begin(self, peer: P, blocks: Blocks) -> Writing:
        """A write of these blocks; its first look submits."""
        ...

    def write(self, peer: P, blocks: Blocks, deadline: Deadline) -> WriteResult:
        """Begin and `finish`."""
        ...

    def settle(self, peer: P) -> bool:
        """Prove that nothing written to this peer before is still under way. False where that cannot be proven."""
        ...

    def observed_transport(self) -> Transport:
        """What carries the bytes, from the fabric's own evidence; never what was asked for."""
        ...

    def exposed_ports(self) -> tuple[int, ...]:
        """Ports that the fabric listens on at every interface and that it cannot be told to bind."""
        ...

    def close(self) -> None:
        """Give everything back. Safe to call twice."""
        ...


Fabric: TypeAlias = FabricOf[Any]
"""Any of them, for whoever hands each its own peers back and looks no further."""

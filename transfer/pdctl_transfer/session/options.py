"""Knobs of a session, each with a default that fits a rack; all times in seconds, all sizes in bytes."""

from typing import Literal

from msgspec import Struct

Verify = Literal["none", "sample", "full"]
Way = Literal["direct", "packed", "staged"]
"""How a kind of state travels from one rank to another: block by block, gathered by the sender, or put into place by
the receiver out of its staging area."""


class Rank(Struct, frozen=True, order=True):
    """One rank of one side: pipeline stage, attention TP rank, attention DP group."""

    pp: int
    tp: int
    dp: int = 0

    def __str__(self) -> str:
        return f"pp{self.pp}/tp{self.tp}" + (f"/dp{self.dp}" if self.dp else "")


class Options(Struct, frozen=True):
    """How a peer behaves. Both sides have their own; only `secret` must agree."""

    host: str = "127.0.0.1"
    """Interface that the control listener binds."""
    advertise: str | None = None
    """Address that peers are told; `host` where None."""
    secret: bytes | None = None
    """Shared secret, required of every message when set."""
    verify: Verify = "sample"
    """What the receiver compares before it confirms: nothing, some words of every item and entry, or every byte."""
    allow_fallback: bool = True
    """False: a fabric that was asked for RDMA and moves bytes over TCP fails every request (PD4013)."""

    handshake_s: float = 10.0
    bootstrap_s: float = 60.0
    waiting_s: float = 300.0
    transfer_s: float = 60.0
    heartbeat_s: float = 1.0
    silent_s: float = 10.0
    """A peer that said nothing for so long is taken for frozen; its requests fail, its buffers are quarantined."""
    regain_s: float = 3.0
    """A connection that ended is expected back for so long; then what was asked over it has failed."""
    linger_s: float = 1.0
    """What may still lie in socket buffers of a peer that is gone is taken to have landed after so long."""

    staging_bytes: int = 128 << 20
    """Staging area that a receiver lends; 0 turns staged transfers off. Two chunks of each of four sources."""
    chunk_bytes: int = 16 << 20
    """A staged transfer travels in chunks of about this size. Each costs messages and wake-ups, a millisecond of CPU in
    all; the last one is put into place when the wire is idle.
    """
    writers: int = 8
    """Threads that write at the same time."""
    events: int = 4096
    """Events kept for the monitor."""

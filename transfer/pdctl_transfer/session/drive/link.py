"""A link between one prefill rank and one decode rank: the handshake, then heartbeats and messages.

Both sides say who they are and what they hold; both judge the pair and compute the plan; the digests must agree. Only
then is the link ready, and no byte moves before. A link is one connection; a peer may have several, one after another.
"""

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.session.bytes.work import PairPlan, pair_plan
from pdctl_transfer.session.drive.loop import Channel
from pdctl_transfer.session.failure import Failure, Side
from pdctl_transfer.session.identity import Check, Identity, region_fault, unmoved, unsummed
from pdctl_transfer.session.wire.messages import Agree, AnyMessage, Beat, Bye, Decline, Hello, Refuse

REFUSED_S = 0.5
"""How long a refused link stands, so that both sides can say what it means for their rooms."""


class LinkOwner(Protocol):
    """Who a link reports to; all calls come on the loop thread."""

    def greeted(self, link: "Link") -> None:
        """The other side's connection speaks the protocol: rooms can be declined."""
        ...

    def ready(self, link: "Link") -> None:
        """Both sides agree; requests may use it."""
        ...

    def message(self, link: "Link", message: AnyMessage) -> None:
        """A message about a request."""
        ...

    def refused(self, link: "Link", failure: Failure) -> None:
        """One side judged that the pair cannot work; the link ends soon."""
        ...

    def silent(self, link: "Link", failure: Failure) -> None:
        """The other side says nothing any more although its connection stands: frozen, or cut off."""
        ...

    def broken(self, link: "Link", failure: Failure) -> None:
        """The link is over, once."""
        ...


class Link:
    """One end of a link. `since`: when it heard from the other side last, is `channel.heard`."""

    def __init__(self, me: Identity, channel: Channel, owner: LinkOwner, *, connector: bool) -> None:
        self.me = me
        self.owner = owner
        self.channel = channel
        channel.owner = self
        self.hello: Hello | None = None
        self.pair: PairPlan | None = None
        self.is_ready = False
        self.is_silent = False
        self.closed = False
        """The other side said that it leaves."""
        self.introduced = False
        """This side's Hello was sent, so that rooms can be declined."""
        self.started = time.monotonic()
        self.handshake_s = 0.0
        self._connector = connector
        self._agreed: str | None = None
        self._failure: Failure | None = None
        channel.loop.later(me.options.handshake_s, self._too_late)
        self._next_beat(self._beat)

    @property
    def incarnation(self) -> str:
        """The other process's; empty before its Hello."""
        return self.hello.incarnation if self.hello else ""

    @property
    def name(self) -> str:
        """The other side, for messages."""
        return f"{self.me.other_side} {self.hello.rank}" if self.hello else self.me.other_side

    @property
    def quiet_s(self) -> float:
        """Since when nothing came, in seconds."""
        return time.monotonic() - self.channel.heard

    def send(self, message: AnyMessage) -> None:
        """Send, or drop it where the link is over."""
        self.channel.send(message)

    def refuse(self, code: str, cause: str, side: Side) -> None:
        """End the link and tell the other side why; both decline their rooms before it goes."""
        self._failure = Failure(code, cause, side)
        self.send(Refuse(code, cause))
        self.owner.refused(self, self._failure)
        self.channel.loop.later(REFUSED_S, self.channel.fail, cause)

    def close(self) -> None:
        """End the link in order; the owner is not told."""
        self.is_ready = False
        self.send(Bye())
        self.channel.close()

    def drop(self) -> None:
        """End it without a word; the owner is not told. Another connection has taken its place."""
        self.is_ready = False
        self.channel.close()

    def opened(self, channel: Channel) -> None:
        """The connector speaks first."""
        if self._connector:
            self.send(self.me.hello())
            self.introduced = True
            self.owner.greeted(self)

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """Handshake and heartbeats end here, everything else goes to the owner of a ready link."""
        self.is_silent = False
        match message:
            case Beat():
                pass
            case Hello():
                self._greet(message)
            case Agree(digest=digest):
                self._agreed = digest
                self._conclude()
            case Refuse(code=code, cause=cause):
                self._refused(code, cause)
            case Bye():
                self.closed = True
                self._failure = Failure("PD4034", f"{self.name} closed", self.me.other_side)
                channel.fail("closed in order")
            case Decline() if self.hello is not None:
                self.owner.message(self, message)
            case _ if self.is_ready:
                self.owner.message(self, message)
            case _ if self._failure is None:
                channel.fail("a request before the handshake")

    def _refused(self, code: str, cause: str) -> None:
        if self._failure is None:
            self._failure = Failure(code, f"{self.name} refused: {cause}", self.me.other_side)
            self.owner.refused(self, self._failure)
        self.channel.loop.later(REFUSED_S, self.channel.fail, cause)

    def lost(self, channel: Channel, cause: str) -> None:
        """The connection is over."""
        if self._failure is None:
            gone = f"{self.name} is gone: {cause}" if self.hello else f"cannot reach {self.me.other_side}: {cause}"
            code = channel.code or ("PD4004" if self.hello else "PD4003")
            self._failure = Failure(code, gone, self.me.other_side)
        self.is_ready = False
        self.owner.broken(self, self._failure)

    def _greet(self, hello: Hello) -> None:
        if self.hello is not None or self._failure is not None:
            return  # repeated: what was said first counts
        self.hello = hello
        if not self._connector:
            self.send(self.me.hello())
        fault = self._judge(hello)
        if fault is not None:
            self.refuse(*fault)
            return
        assert self.pair is not None
        self.send(Agree(self.pair.digest))
        self._conclude()

    def _judge(self, hello: Hello) -> tuple[str, str, Side] | None:
        """Code, cause and side of the first thing that is wrong with the pair; computes the plan."""
        theirs = self.me.other_side
        try:
            other = decode_manifest(hello.manifest, f"{theirs} {hello.rank}")
        except TransferError as error:
            return error.code, error.message, theirs
        if hello.chunk_bytes < 1:
            return "PD4022", f"{self.name} takes chunks of {hello.chunk_bytes} bytes", theirs
        if other.role != theirs:
            return "PD4024", f"{self.name} has a {other.role} manifest", theirs
        if hello.fabric != self.me.fabric.kind:
            return "PD4025", f"{self.name} moves bytes by {hello.fabric}, this side by {self.me.fabric.kind}", theirs
        apart = unmoved(other)
        if apart is not None:
            return apart[0], f"{self.name}: {apart[1]}", theirs
        fault = region_fault(other, hello.rank, hello.regions)
        if fault:
            return "PD4022", f"{self.name}: {fault}", theirs
        fault = unsummed(self.me, hello)
        if fault:
            return "PD4016", f"{self.name}: {fault}", theirs
        mine, his = self.me.encoded, hello.manifest
        refusal, self.pair = judged(self.me.check, *((mine, his) if self.me.side == "prefill" else (his, mine)))
        return (*refusal, theirs) if refusal is not None else None

    def _conclude(self) -> None:
        if self.pair is None or self._agreed is None or self.is_ready or self._failure is not None:
            return
        if self._agreed != self.pair.digest:
            cause = f"plan {self.pair.digest[:12]} here, {self._agreed[:12]} on {self.name}"
            self.refuse("PD4009", cause, self.me.other_side)
            return
        self.is_ready = True
        self.handshake_s = time.monotonic() - self.started
        self.owner.ready(self)

    def _too_late(self) -> None:
        if not self.is_ready and not self.channel.over and self._failure is None:
            where = f"{self.name} did not finish the handshake in {self.me.options.handshake_s:g} s"
            self._failure = Failure("PD4003", where, self.me.other_side)
            self.channel.fail(where)

    def _next_beat(self, beat: Callable[[float], None]) -> None:
        every = self.me.options.heartbeat_s
        self.channel.loop.later(every, beat, time.monotonic() + every)

    def _beat(self, due: float) -> None:
        if self.channel.over:
            return
        self.send(Beat())
        late = time.monotonic() - due
        if late > self.me.options.heartbeat_s:  # a stall of this process: what came meanwhile has not been read yet
            self.channel.heard = min(time.monotonic(), self.channel.heard + late)
        if self.quiet_s > self.me.options.silent_s and not self.is_silent and self.is_ready:
            self.is_silent = True
            cause = f"{self.name} has said nothing for {self.quiet_s:.1f} s, its connection stands"
            self.owner.silent(self, Failure("PD4005", cause, self.me.other_side))
        self._next_beat(self._beat)


@lru_cache(maxsize=64)
def judged(check: Check, prefill: bytes, decode: bytes) -> tuple[tuple[str, str] | None, PairPlan | None]:
    """Why a pair of encoded manifests cannot work, as code and cause, or its plan. Once a process: rules and plans cost
    milliseconds, and many ranks have the same pair."""
    here, there = decode_manifest(prefill, "prefill"), decode_manifest(decode, "decode")
    for finding in check(here, there):
        if finding.severity in (None, "error"):
            said = "; ".join(f"{e.source}: {e.text}" for e in finding.evidence)
            return (finding.code, said or finding.subject), None
    try:
        return None, pair_plan(prefill, decode)
    except TransferError as error:
        return (error.code, error.message), None

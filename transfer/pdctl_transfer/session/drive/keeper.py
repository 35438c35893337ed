"""The connections of a decode rank to prefill ranks: made when needed, again when lost, beside one that fell silent.

A peer is needed as long as anything of it is awaited, or may still land in this rank's memory. Nobody gives up on it
here: deadlines belong to requests. Only evidence ends it: another process answers at its address, or nobody does and
its pulse has stopped.
"""

import time
from typing import Final, Protocol

from pdctl_transfer.session.drive.link import Link
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.drive.pulse import PULSE, Vital
from pdctl_transfer.session.drive.workers import Workers
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.identity import Identity
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Peer
from pdctl_transfer.session.wire.messages import AnyMessage, Decline

BACKOFF_S: Final = (0.02, 0.1, 0.2, 0.5, 1.0)
LOOK_S: Final = 0.25
"""How often a link is looked at for silence."""
DOUBT: Final = 0.4
"""A link that is silent for this part of `silent_s` is doubted: another connection is tried beside it."""


class Keeper(Protocol):
    """What a kept peer needs of the side that it belongs to."""

    me: Identity
    loop: Loop
    workers: Workers

    def tell(self, event: on.AnyEvent) -> None:
        """Let something happen."""
        ...

    def needs(self, peer: Peer) -> bool:
        """Whether a link to this peer is of use."""
        ...

    def linked(self, link: Link) -> None:
        """A link is ready."""
        ...

    def heard(self, link: Link, message: AnyMessage) -> None:
        """A message about a request."""
        ...

    def unkept(self, peer: Peer) -> None:
        """It is not needed any more, or gone."""
        ...


class Kept:
    """One prefill rank, by its incarnation and address, and the connection to it, if there is one."""

    def __init__(self, owner: Keeper, peer: Peer, address: tuple[str, int]) -> None:
        self._owner, self.peer, self.address = owner, peer, address
        self._options = owner.me.options
        self.link: Link | None = None
        """The one that is ready."""
        self._trying: Link | None = None
        self._declines: dict[int, tuple[Decline, float]] = {}
        """By room, and until when each is worth saying."""
        self._undelivered: set[int] = set()
        """Rooms of declines that no connection has carried yet."""
        self._vital: Vital | None = None
        self._tries = 0
        self._over = False
        owner.loop.later(LOOK_S, self._look)

    def want(self) -> None:
        """Connect, if there is no connection and it is needed."""
        if self._owner.needs(self.peer):
            self._try()

    def decline(self, message: Decline) -> None:
        """Say this as soon as it can be said, and on each new connection as long as prefill may wait for the room."""
        self._declines[message.room] = message, time.monotonic() + self._options.bootstrap_s
        link = self.link or self._trying
        if link is not None and link.introduced and not link.channel.over:
            link.send(message)
        else:
            self._undelivered.add(message.room)
            self._try()

    def asks(self, room: int) -> None:
        """The room is asked for, after all or again."""
        self._declines.pop(room, None)
        self._undelivered.discard(room)

    def close(self) -> None:
        """End the connection in order."""
        self._over = True
        for link in (self.link, self._trying):
            if link is not None:
                link.close()

    # What links say, on the loop thread.

    def greeted(self, link: Link) -> None:
        """It speaks the protocol: what was to be declined can be."""
        now = time.monotonic()
        self._declines = {room: entry for room, entry in self._declines.items() if entry[1] > now}
        for message, _ in self._declines.values():
            link.send(message)
        self._undelivered.clear()

    def ready(self, link: Link) -> None:
        """Both sides agree. If it is another process, the one that was meant is gone."""
        if link.incarnation != self.peer:
            link.close()
            self._trying = None
            self._gone(f"{link.name} at {self.address[0]}:{self.address[1]} is another process now")
            return
        if self.link is not None:
            self.link.drop()
        self.link, self._trying, self._tries = link, None, 0
        if self._vital is None and link.hello is not None:
            self._vital = Vital(self.address[0], link.hello.pulse)
            self._owner.workers.submit(self._vital.meet, PULSE)
        self._owner.linked(link)

    def message(self, link: Link, message: AnyMessage) -> None:
        """Only the connection that counts is heard."""
        if link is self.link:
            self._owner.heard(link, message)

    def refused(self, link: Link, failure: Failure) -> None:
        """The pair cannot work."""
        self._owner.tell(on.LinkRefused(time.monotonic(), self.peer, failure))

    def silent(self, link: Link, failure: Failure) -> None:
        """Frozen, or the path is dead: it is given up for another."""
        self._owner.tell(on.LinkSilent(time.monotonic(), self.peer, failure))
        link.channel.fail(failure.cause)

    def broken(self, link: Link, failure: Failure) -> None:
        """A connection ended, or could not be made."""
        if link is self.link:
            self.link = None
            self._owner.tell(on.LinkBroken(time.monotonic(), self.peer, failure, link.closed))
        elif link is self._trying:
            self._trying = None
            self._owner.tell(on.LinkFailed(time.monotonic(), self.peer, failure))
            if link.channel.refused and self._vital is not None:
                self._owner.workers.submit(self._examine, PULSE)
        else:
            return
        wait = BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
        self._tries += 1
        self._owner.loop.later(wait, self._try)

    def _try(self) -> None:
        if self._over or self.link is not None or self._trying is not None:
            return
        if self._needed:
            self._trying = self._connect()
        else:
            self._over = True
            self._owner.unkept(self.peer)

    @property
    def _needed(self) -> bool:
        now = time.monotonic()
        declining = any(self._declines[room][1] > now for room in self._undelivered)
        return declining or self._owner.needs(self.peer)

    def _connect(self) -> Link:
        options = self._options
        channel = self._owner.loop.connect(*self.address, options.secret, options.handshake_s)
        return Link(self._owner.me, channel, self, connector=True)

    def _look(self) -> None:
        """A link that has been silent for a while may be half dead: try another path to the same process."""
        if self._over:
            return
        doubted = self.link is not None and self.link.quiet_s > self._options.silent_s * DOUBT
        if doubted and self._trying is None and self._owner.needs(self.peer):
            self._trying = self._connect()
        if self.link is None and self._trying is None and not self._needed:
            self._try()
        self._owner.loop.later(LOOK_S, self._look)

    # Is it gone?

    def _examine(self) -> None:
        """On a worker: nobody listens at its address; has the process ended?"""
        if self._vital is not None and self._vital.ended():
            self._owner.loop.call(self._owner.loop.later, self._options.linger_s, self._gone_if_away)

    def _gone_if_away(self) -> None:
        if self.link is None:
            self._gone("its process has ended")

    def _gone(self, why: str) -> None:
        if not self._over:
            self._over = True
            self._owner.unkept(self.peer)
            side = self._owner.me.other_side
            failure = Failure("PD4004", f"{side} at {self.address[0]}:{self.address[1]} is gone: {why}", side)
            self._owner.tell(on.PeerGone(time.monotonic(), self.peer, failure))

"""Listening for peers among whoever else connects: nobody holds state before a first message that was right.

Guests are those who have not said it yet. They are few, each may send little (`FIRST_FRAME`), and where there are too
many the one that has been silent longest goes: a peer proves itself within milliseconds, so it is not that one.
"""

import errno
import socket
from collections.abc import Callable
from typing import Final

from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.wire.messages import AnyMessage

MAX_GUESTS: Final = 128
GREETING_S: Final = 10.0
BACKLOG: Final = 1024
"""Connections that the kernel holds for us; of one more it drops the first packet, and who wanted it waits a second."""
PAUSE_S: Final = 0.1
"""Between two looks where the process has no descriptor left for one more connection."""


class Listener:
    """Accepts connections. At most MAX_GUESTS that have not proven themselves, each for GREETING_S.

    `accept` is called, on the loop thread, for each that sent a first right message. Raises OSError where it cannot
    listen. Not to be made on the loop thread.
    """

    def __init__(
        self, loop: Loop, host: str, port: int, accept: Callable[[Channel], None], secret: bytes | None
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._sock.setblocking(False)
        self._loop, self._accept, self._secret = loop, accept, secret
        self._guests: dict[Channel, _Guest] = {}
        self._closed = False
        self.port: int = self._sock.getsockname()[1]
        loop.call(self._listen)

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._sock, self._readable)

    def _readable(self) -> None:
        """One at a time: those who came before are heard in between."""
        try:
            sock, _ = self._sock.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self._make_room():
                self._loop.remove_reader(self._sock)
                self._loop.later(PAUSE_S, self._listen)
            return
        sock.setblocking(False)
        if len(self._guests) >= MAX_GUESTS:
            self._make_room()
        guest = _Guest(self)
        channel = Channel(self._loop, guest, self._secret, connector=False)
        self._guests[channel] = guest
        self._loop.later(GREETING_S, self._expire, channel)
        self._loop.adopt(sock, channel)

    def _make_room(self) -> bool:
        """Drop the oldest guest that has said nothing, or else the oldest; False where there is none."""
        silent = (channel for channel in self._guests if not channel.greeted)
        oldest = next(silent, next(iter(self._guests), None))
        if oldest is None:
            return False
        oldest.fail("too many connections that have proven nothing")
        return True

    def _expire(self, channel: Channel) -> None:
        if channel in self._guests:
            channel.fail("no message in time")

    def greeted(self, channel: Channel, message: AnyMessage) -> None:
        """A guest's first right message came: it is a peer, give it to the acceptor."""
        self._guests.pop(channel, None)
        self._accept(channel)
        channel.owner.received(channel, message)

    def dropped(self, channel: Channel) -> None:
        """A guest left."""
        self._guests.pop(channel, None)

    def close(self) -> None:
        """Stop listening and drop guests; from the loop thread."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._sock)
            self._sock.close()
        for channel in list(self._guests):
            channel.close()
        self._guests.clear()


class _Guest:
    """Owner of a connection until its first message: who signs nothing gets nothing and holds no state."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    def opened(self, channel: Channel) -> None:
        """Nothing: a guest must speak first."""

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """The first message makes it a peer."""
        self._listener.greeted(channel, message)

    def lost(self, channel: Channel, cause: str) -> None:
        """Forget it."""
        self._listener.dropped(channel)

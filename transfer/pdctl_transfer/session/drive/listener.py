"""Listening for peers among whoever else connects: nobody holds state before a first message that was right."""

import socket
from collections.abc import Callable
from typing import Final

from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.wire.messages import AnyMessage

MAX_GUESTS: Final = 256
GREETING_S: Final = 10.0


class Listener:
    """Accepts connections. At most MAX_GUESTS that have not proven themselves; a silent one is dropped.

    `accept` is called, on the loop thread, for each that sent a first right message. Raises OSError where it cannot
    listen. Not to be made on the loop thread.
    """

    def __init__(
        self, loop: Loop, host: str, port: int, accept: Callable[[Channel], None], secret: bytes | None
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.create_server((host, port), family=family, backlog=256)
        self._sock.setblocking(False)
        self._loop, self._accept, self._secret = loop, accept, secret
        self._guests: dict[Channel, _Guest] = {}
        self.port: int = self._sock.getsockname()[1]
        loop.call(loop.add_reader, self._sock, self._readable)

    def _readable(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except OSError:
            return
        sock.setblocking(False)
        if len(self._guests) >= MAX_GUESTS:
            sock.close()
            return
        guest = _Guest(self)
        channel = Channel(self._loop, guest, self._secret, connector=False)
        self._guests[channel] = guest
        self._loop.later(GREETING_S, self._expire, channel)
        self._loop.adopt(sock, channel)

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

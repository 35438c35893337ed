"""The registry's clients: ranks that keep themselves registered, decode ranks that look routes up.

Both keep one connection, come back after it was lost, and never give up by themselves: deadlines belong to requests.
"""

import time
from collections.abc import Callable
from typing import Final

from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire.messages import AnyMessage, Beat, Bye, Lookup, Message, Register, RoomAt, Route

BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
POLL_S: Final = 0.1
Address = tuple[str, int]


class _Client:
    """A connection to a registry that is renewed whenever it is lost. Used on the loop thread only."""

    def __init__(self, loop: Loop, address: Address, options: Options) -> None:
        self._loop, self._address, self._options = loop, address, options
        self._channel: Channel | None = None
        self._open = False
        self._closed = False
        self._tries = 0
        self.cause = f"registry {address[0]}:{address[1]}: no connection yet"
        """Why there is no connection; empty while there is one."""
        self.code = "PD4001"
        self._connect()

    def opened(self, channel: Channel) -> None:
        """Say again what the registry must know."""
        self._open, self._tries, self.cause = True, 0, ""
        self._greet()
        self._beat(channel)

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """Answers."""
        if isinstance(message, Route):
            self._routed(message)

    def lost(self, channel: Channel, cause: str) -> None:
        """Try again, later each time."""
        self._open = False
        self.cause = f"registry {self._address[0]}:{self._address[1]}: {cause}"
        self.code = channel.code or "PD4001"
        if not self._closed:
            wait = BACKOFF_S[min(self._tries, len(BACKOFF_S) - 1)]
            self._tries += 1
            self._loop.later(wait, self._connect)

    def close(self) -> None:
        """End for good."""
        self._closed = True
        if self._channel is not None:
            self._channel.send(Bye())
            self._channel.close()

    def _send(self, message: Message) -> None:
        if self._open and self._channel is not None:
            self._channel.send(message)

    def _connect(self) -> None:
        if not self._closed:
            host, port = self._address
            options = self._options
            self._channel = self._loop.connect(host, port, options.secret, options.handshake_s, self)

    def _beat(self, channel: Channel) -> None:
        if channel is self._channel and not channel.over:
            self._send(Beat())
            self._loop.later(self._options.heartbeat_s, self._beat, channel)

    def _greet(self) -> None:
        """Called for each new connection."""

    def _routed(self, route: Route) -> None:
        """Called for each answer."""


class Registration(_Client):
    """Keeps a rank registered."""

    def __init__(self, loop: Loop, address: Address, options: Options, record: Register) -> None:
        self._record = record
        super().__init__(loop, address, options)

    def room_at(self, room: int) -> None:
        """Tell which DP group serves a room."""
        self._send(RoomAt(room, self._record.rank.dp))

    def _greet(self) -> None:
        self._send(self._record)


class Routes(_Client):
    """Looks up who serves a room. An answer holds for every room where prefill has one DP group, and is kept."""

    def __init__(self, loop: Loop, address: Address, options: Options) -> None:
        self._waiting: dict[int, tuple[int, Callable[[Route], bool], float]] = {}
        self._serial = 0
        self._known: Route | None = None
        super().__init__(loop, address, options)

    def find(self, room: int, answer: Callable[[Route], bool]) -> None:
        """Call `answer` with routes for the room until it says True, or until nobody can wait for it any more.

        Incomplete routes are answers too: `missing`.
        """
        if self._known is not None and answer(self._known):
            return
        now = time.monotonic()
        self._waiting = {serial: entry for serial, entry in self._waiting.items() if entry[2] > now}
        self._serial += 1
        self._waiting[self._serial] = (room, answer, now + self._options.bootstrap_s)
        self._send(Lookup(self._serial, room))

    def forget(self) -> None:
        """What was known has changed: ask again next time."""
        self._known = None

    def keep(self, route: Route) -> None:
        """The route serves every room."""
        self._known = route

    def _greet(self) -> None:
        for serial, (room, _, _) in self._waiting.items():
            self._send(Lookup(serial, room))

    def _routed(self, route: Route) -> None:
        if route.serial not in self._waiting:
            return
        room, answer, _ = self._waiting[route.serial]
        if answer(route):
            self._waiting.pop(route.serial, None)
        else:
            self._loop.later(POLL_S, self._again, route.serial, room)

    def _again(self, serial: int, room: int) -> None:
        if serial in self._waiting:
            self._send(Lookup(serial, room))

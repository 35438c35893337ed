"""The registry's clients: ranks that keep themselves registered, decode ranks that look routes up.

Both keep one connection, come back after it was lost or fell silent, and never give up by themselves: deadlines belong
to requests. Whatever the registry must know is said again on each new connection.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.machine.rooms import MAX_ROOMS
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire.messages import (
    Again,
    AnyMessage,
    Beat,
    Bye,
    Here,
    Lookup,
    Message,
    Register,
    RoomAt,
    RoomOver,
    Route,
    Standing,
)

BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
POLL_S: Final = 0.1
ASK_AGAIN_S: Final = 1.0
"""After so long without an answer the same question is asked once more."""
Address = tuple[str, int]
Answer = Callable[[Route], bool]


class Fault(NamedTuple):
    """What is wrong with a client's standing: a catalog code, and the cause in words."""

    code: str
    cause: str


class _Client:
    """A connection to a registry that is renewed whenever it is lost. Used on the loop thread only."""

    def __init__(self, loop: Loop, address: Address, options: Options) -> None:
        self._loop, self._address, self._options = loop, address, options
        self._channel: Channel | None = None
        self._open = False
        self._closed = False
        self._tries = 0
        self._unanswered: float | None = None
        """Since when a heartbeat has had no answer."""
        self.cause = f"registry {address[0]}:{address[1]}: no connection yet"
        """Why there is no connection; empty while there is one."""
        self.code = "PD4001"
        self._connect()

    def opened(self, channel: Channel) -> None:
        """Say again what the registry must know."""
        self._open, self._tries, self._unanswered, self.cause = True, 0, None, ""
        self._greet()
        self._beat(channel)

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """Answers; any of them is a sign of life."""
        self._unanswered = None
        self._answered(message)

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
            self._loop.later(options.handshake_s, self._too_late, self._channel)

    def _too_late(self, channel: Channel) -> None:
        """Somebody accepts connections there and says nothing: frozen, or no registry."""
        if channel is self._channel and not self._open:
            channel.fail(f"no answer in {self._options.handshake_s:g} s")

    def _beat(self, channel: Channel) -> None:
        if channel is not self._channel or channel.over:
            return
        now = time.monotonic()
        quiet = now - self._unanswered if self._unanswered is not None else 0.0
        if quiet > self._options.silent_s:
            channel.fail(f"no answer for {quiet:.1f} s, its connection stands")
            return
        if self._unanswered is None:
            self._unanswered = now
        self._tend(now)
        self._send(self._heartbeat())
        self._loop.later(self._options.heartbeat_s, self._beat, channel)

    def _heartbeat(self) -> Message:
        """What is sent as a sign of life; the registry answers it."""
        return Beat()

    def _tend(self, now: float) -> None:
        """Called before each heartbeat."""

    def _greet(self) -> None:
        """Called for each new connection."""

    def _answered(self, message: AnyMessage) -> None:
        """Called for each message."""


class Registration(_Client):
    """Keeps a rank registered, and its open rooms known where there are several DP groups to choose from."""

    def __init__(self, loop: Loop, address: Address, options: Options, record: Register) -> None:
        self._record = record
        self._choice = decode_manifest(record.manifest, "own manifest").parallel.dp > 1
        self._rooms: dict[int, bool] = {}
        """Rooms that the registry must know; whether they are open. Those that failed are kept for a while."""
        self.fault: Fault | None = None
        """Why decode is not told of this rank although the registry was reached, as far as is known; else None."""
        super().__init__(loop, address, options)

    def room_at(self, room: int) -> None:
        """This rank's DP group serves the room; told now, or once there is a connection."""
        if self._choice:
            self._rooms.pop(room, None)
            self._rooms[room] = True
            self._send(RoomAt(room))
            if len(self._rooms) > MAX_ROOMS:
                self.room_over(next(iter(self._rooms)))

    def room_over(self, room: int, *, failed: bool = False) -> None:
        """The room has ended here. One that `failed` stays known for `bootstrap_s`: who asks late is to hear why."""
        if room not in self._rooms:
            return
        if failed:
            self._rooms[room] = False
            self._loop.later(self._options.bootstrap_s, self._forget, room)
        else:
            del self._rooms[room]
            self._send(RoomOver(room))

    def lost(self, channel: Channel, cause: str) -> None:
        """Being refused at the door is a fault as well: another protocol, another secret."""
        if channel.code:
            self.fault = Fault(channel.code, cause)
        super().lost(channel, cause)

    def _forget(self, room: int) -> None:
        if self._rooms.get(room) is False:
            self.room_over(room)

    def _heartbeat(self) -> Message:
        return Here(self._record.incarnation)

    def _greet(self) -> None:
        self._send(self._record)
        for room in self._rooms:
            self._send(RoomAt(room))

    def _answered(self, message: AnyMessage) -> None:
        match message:
            case Again():
                self._greet()
            case Standing(code=code, cause=cause):
                self.fault = Fault(code, cause) if code else None


class _Question:
    """A lookup that has had no sufficient answer."""

    def __init__(self, room: int, answer: Answer, until: float) -> None:
        self.room, self.answer, self.until = room, answer, until
        self.asked = 0.0
        """When it was asked; 0 while it waits to be asked again."""


class Routes(_Client):
    """Looks up who serves a room. An answer holds for every room where prefill has one DP group, and is kept."""

    def __init__(self, loop: Loop, address: Address, options: Options) -> None:
        self._waiting: dict[int, _Question] = {}
        self._serial = 0
        self._known: Route | None = None
        super().__init__(loop, address, options)

    def find(self, room: int, answer: Answer) -> None:
        """Call `answer` with routes for the room until it says True, is withdrawn, or `bootstrap_s` is over.

        Incomplete routes are answers too: `missing`.
        """
        if self._known is not None and answer(self._known):
            return
        self._serial += 1
        self._waiting[self._serial] = _Question(room, answer, time.monotonic() + self._options.bootstrap_s)
        self._ask(self._serial)

    def withdraw(self, room: int, answer: Answer | None = None) -> None:
        """Nobody waits for this room any more, or not this `answer`: it is not called again."""
        self._waiting = {
            serial: one
            for serial, one in self._waiting.items()
            if one.room != room or (answer is not None and one.answer != answer)
        }

    def forget(self) -> None:
        """What was known has changed: ask again next time."""
        self._known = None

    def keep(self, route: Route) -> None:
        """The route serves every room."""
        self._known = route

    def _ask(self, serial: int) -> None:
        question, now = self._waiting.get(serial), time.monotonic()
        if question is None:
            return
        if now > question.until:
            del self._waiting[serial]
            return
        question.asked = now
        self._send(Lookup(serial, question.room))

    def _greet(self) -> None:
        for serial in list(self._waiting):
            self._ask(serial)

    def _tend(self, now: float) -> None:
        for serial, question in list(self._waiting.items()):
            if question.asked and now - question.asked > ASK_AGAIN_S:
                self._ask(serial)

    def _answered(self, message: AnyMessage) -> None:
        if not isinstance(message, Route):
            return
        question = self._waiting.get(message.serial)
        if question is None or not question.asked:
            return
        if question.answer(message):
            self._waiting.pop(message.serial, None)
        else:
            question.asked = 0.0
            self._loop.later(POLL_S, self._ask, message.serial)

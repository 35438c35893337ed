"""Where prefill ranks are found. Lives in the prefill engine, on its bootstrap port.

What is known, and who counts where several claim one rank, is `machine/table.py`; this gives it connections and time.
Nothing is stored: after a restart the ranks come again.
"""

import time

from pdctl_transfer.errors import FabricError
from pdctl_transfer.session.drive.listener import Listener
from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.machine import table_events as events
from pdctl_transfer.session.machine.table import TICK_S, Table
from pdctl_transfer.session.wire import messages
from pdctl_transfer.session.wire.messages import AnyMessage, Served


class Registry:
    """Serves a `Table`. Raises FabricError PD4015 where the port cannot be had."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, secret: bytes | None = None) -> None:
        self._table = Table()
        self._channels: set[Channel] = set()
        self._loop = Loop("pdctl-registry")
        try:
            self._listener = Listener(self._loop, host, port, self._accept, secret)
        except OSError as error:
            self._loop.stop()
            raise FabricError(f"registry cannot listen on {host}:{port}: {error}", code="PD4015") from error
        self.host = host
        self.port = self._listener.port
        self._loop.call(self._tick)

    def ranks(self) -> tuple[Served, ...]:
        """Who is registered now."""
        result: tuple[Served, ...] = self._loop.ask(self._table.ranks)
        return result

    def close(self) -> None:
        """Stop serving; ranks notice and try again. Safe to call twice."""

        def end() -> None:
            self._listener.close()
            for channel in list(self._channels):
                channel.close()

        self._loop.call(end)
        self._loop.stop()

    # Connections, on the loop thread.

    def _accept(self, channel: Channel) -> None:
        channel.owner = self
        self._channels.add(channel)

    def opened(self, channel: Channel) -> None:
        """Nothing to do: they speak first."""

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """Serve one message; what does not belong here ends the connection."""
        event = _event(time.monotonic(), channel, message)
        if event is None:
            channel.fail("not a message for a registry")
        else:
            self._step(event)

    def lost(self, channel: Channel, cause: str) -> None:
        """The table decides what that means for its rank."""
        self._channels.discard(channel)
        self._step(events.Gone(time.monotonic(), channel))

    def _step(self, event: events.Event | events.TimePassed) -> None:
        for action in self._table.step(event):
            assert isinstance(action.owner, Channel)
            if isinstance(action, events.CloseLink):
                action.owner.fail(action.cause)
            else:
                action.owner.send(action.message)

    def _tick(self) -> None:
        self._step(events.TimePassed(time.monotonic()))
        self._loop.later(TICK_S, self._tick)


def _event(now: float, channel: Channel, message: AnyMessage) -> events.Event | None:
    """What a message means to the table; None for one that no registry is sent."""
    match message:
        case messages.Register():
            return events.Registered(now, channel, message)
        case messages.Here(incarnation=incarnation):
            return events.Beaten(now, channel, incarnation)
        case messages.Beat():
            return events.Beaten(now, channel)
        case messages.RoomAt(room=room):
            return events.RoomOpened(now, channel, room)
        case messages.RoomOver(room=room):
            return events.RoomClosed(now, channel, room)
        case messages.Lookup(serial=serial, room=room):
            return events.LookedUp(now, channel, serial, room)
        case messages.Bye():
            return events.Left(now, channel)
        case _:
            return None

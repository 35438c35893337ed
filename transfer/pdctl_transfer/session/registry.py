"""Where prefill ranks are found. Lives in the prefill engine, on its bootstrap port.

Ranks are told apart by rank, so one that registers twice is one rank, and a restarted one replaces its former self. An
entry lives as long as its connection and its heartbeats. Nothing is stored: after a restart the ranks come again.
"""

import time
from collections import OrderedDict

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.layout.read import decode_manifest
from pdctl_transfer.session.drive.listener import Listener
from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.options import Rank
from pdctl_transfer.session.wire.messages import AnyMessage, Beat, Bye, Lookup, Register, RoomAt, Route, Served

TTL_S = 15.0
MAX_ROOMS = 65536


class Table:
    """What is registered: pure, without sockets or clocks."""

    def __init__(self) -> None:
        self._ranks: dict[Rank, tuple[Served, bytes, object]] = {}
        self._rooms: OrderedDict[int, int] = OrderedDict()
        self._manifests: dict[bytes, Manifest] = {}

    def register(self, message: Register, owner: object) -> None:
        """Add or replace a rank. Raises ManifestError. `owner` is the connection that vouches for it."""
        self._manifest(message.manifest)
        served = Served(message.rank, message.host, message.port, message.incarnation)
        self._ranks[message.rank] = (served, message.manifest, owner)
        used = {manifest for _, manifest, _ in self._ranks.values()}
        self._manifests = {data: value for data, value in self._manifests.items() if data in used}

    def drop(self, owner: object) -> None:
        """Forget what this connection vouched for."""
        self._ranks = {rank: entry for rank, entry in self._ranks.items() if entry[2] is not owner}

    def room_at(self, room: int, dp: int) -> None:
        """Remember which DP group serves a room; the oldest is forgotten where there are too many."""
        self._rooms[room] = dp
        self._rooms.move_to_end(room)
        if len(self._rooms) > MAX_ROOMS:
            self._rooms.popitem(last=False)

    def route(self, serial: int, room: int) -> Route:
        """All ranks of the group that serves the room, or what is missing."""
        if not self._ranks:
            return Route(serial, "no prefill rank has registered", (), b"")
        dps = {rank.dp for rank in self._ranks}
        some = next(iter(self._ranks.values()))
        sizes = self._manifest(some[1]).parallel
        dp = self._rooms.get(room)
        if sizes.dp == 1:
            dp = min(dps)
        if dp is None:
            return Route(serial, f"no prefill DP group has opened room {room}", (), b"")
        group = {rank: entry for rank, entry in self._ranks.items() if rank.dp == dp}
        wanted = [Rank(pp, tp, dp) for pp in range(sizes.pp) for tp in range(sizes.attn_tp)]
        absent = [str(rank) for rank in wanted if rank not in group]
        if absent:
            return Route(serial, f"prefill ranks not registered: {', '.join(absent[:8])}", (), b"")
        manifests = {group[rank][1] for rank in wanted}
        if len(manifests) > 1:
            return Route(serial, "prefill ranks registered with different manifests", (), b"")
        return Route(serial, "", tuple(group[rank][0] for rank in wanted), manifests.pop())

    def ranks(self) -> tuple[Served, ...]:
        """Everything registered, in rank order."""
        return tuple(self._ranks[rank][0] for rank in sorted(self._ranks))

    def _manifest(self, data: bytes) -> Manifest:
        if data not in self._manifests:
            self._manifests[data] = decode_manifest(data, "registry")
        return self._manifests[data]


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
        self._loop.call(self._sweep)

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

    def _accept(self, channel: Channel) -> None:
        channel.owner = self
        self._channels.add(channel)

    def opened(self, channel: Channel) -> None:
        """Nothing to do: they speak first."""

    def received(self, channel: Channel, message: AnyMessage) -> None:
        """Serve one message; what does not belong here ends the connection."""
        match message:
            case Register():
                try:
                    self._table.register(message, channel)
                except TransferError as error:
                    channel.fail(error.message)
            case RoomAt(room=room, dp=dp):
                self._table.room_at(room, dp)
            case Lookup(serial=serial, room=room):
                channel.send(self._table.route(serial, room))
            case Beat():
                channel.send(Beat())
            case Bye():
                channel.fail("closed in order")
            case _:
                channel.fail("not a message for a registry")

    def lost(self, channel: Channel, cause: str) -> None:
        """Its ranks go with it."""
        self._channels.discard(channel)
        self._table.drop(channel)

    def _sweep(self) -> None:
        now = time.monotonic()
        for channel in list(self._channels):
            if now - channel.heard > TTL_S:
                channel.fail("no heartbeat")
        self._loop.later(TTL_S / 5, self._sweep)

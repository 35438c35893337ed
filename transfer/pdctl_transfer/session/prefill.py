"""The sending side: one prefill rank, the rooms open on it, and the decode ranks that ask for them.

A room is complete when every decode rank that this rank feeds has asked. Each of them is a *leg*: written by a worker,
confirmed by its receiver. The room is confirmed when all legs are; the first leg that fails fails all.
"""

import os
import threading
from collections.abc import Iterable

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Fabric
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.book import Book
from pdctl_transfer.session.bytes.area import shared_area
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.checks import default_check, fallback_fault, index_fault
from pdctl_transfer.session.drive.client import Registration
from pdctl_transfer.session.drive.listener import Listener
from pdctl_transfer.session.drive.loop import Channel, Loop
from pdctl_transfer.session.drive.workers import Workers
from pdctl_transfer.session.identity import Check, Identity, identity
from pdctl_transfer.session.leg import Leg, Sent
from pdctl_transfer.session.life import Failure
from pdctl_transfer.session.link import Link
from pdctl_transfer.session.options import Options, Rank, Region
from pdctl_transfer.session.sending import Room, SendHandle
from pdctl_transfer.session.settlement import Settlement
from pdctl_transfer.session.stream import Stream
from pdctl_transfer.session.timers import Timer
from pdctl_transfer.session.wire import messages
from pdctl_transfer.telemetry import Telemetry


class PrefillPeer:
    """One prefill rank. `regions` hold its memory, one an entry of its stage, registered with `fabric` by the caller.

    copier: what gathers and sums in that memory; not needed where the CPU can.

    Raises TransferError PD4022 where regions and manifest disagree, PD4016 where `verify` needs a copier and there is
    none, FabricError PD4015 where it cannot listen.
    """

    def __init__(
        self,
        manifest: Manifest,
        rank: Rank,
        regions: Iterable[Region],
        fabric: Fabric,
        *,
        registry: tuple[str, int],
        options: Options | None = None,
        check: Check = default_check,
        copier: Copier | None = None,
    ) -> None:
        self.options = options or Options()
        self.telemetry = Telemetry("prefill", str(rank), self.options.events)
        self.me: Identity = identity(manifest, rank, regions, fabric, self.options, check, copier)
        self.telemetry.gauge("open_rooms", "Rooms that have not ended", lambda: len(self._book.rooms))
        self.telemetry.gauge("unsettled", "Legs that are under way, or in quarantine", lambda: len(self._book.legs))
        chunk = self.options.chunk_bytes
        slots = self.options.writers if self.me.copier.can_copy else 0
        self.scratch = shared_area(fabric, self.me.copier, slots * chunk, chunk, "scratch")
        self.loop = Loop(f"pdctl-prefill-{rank}")
        self.workers = Workers(f"pdctl-write-{rank}", self.options.writers)
        self.gathering = threading.Semaphore(max(1, len(os.sched_getaffinity(0)) // 2))
        """Held while a chunk is gathered: by half of the cores, so that the wire soon has a chunk, and a core."""
        self._book = Book(self.options.bootstrap_s)
        self._settlement = Settlement(self.loop, fabric, str(rank), self._book.drop)
        self._links: set[Link] = set()
        try:
            self._listener = Listener(self.loop, self.options.host, 0, self._accept, self.options.secret)
        except OSError as error:
            self.loop.stop()
            self.scratch.close()
            raise FabricError(f"cannot listen on {self.options.host}: {error}", code="PD4015") from error
        host = self.options.advertise or self.options.host
        record = messages.Register(rank, host, self._listener.port, self.me.incarnation, self.me.encoded)
        self._registration: Registration = self.loop.ask(
            lambda: Registration(self.loop, registry, self.options, record)
        )

    @property
    def port(self) -> int:
        """Port of the control listener."""
        return self._listener.port

    def open(self, room: int) -> SendHandle:
        """Expect decode ranks to ask for this room. A room that is open already fails at once (PD4023)."""
        handle = SendHandle(self, room)
        self.loop.call(self._open, handle)
        return handle

    def close(self) -> None:
        """Fail what is open (PD4034), let running writes end for up to 5 seconds, leave. Safe to call twice."""

        def end() -> None:
            gone = Failure("PD4034", "the prefill engine closed", "prefill")
            for room in list(self._book.rooms.values()):
                self._fail(room, gone)

        self.loop.call(end)
        self.workers.close(5.0)
        self._settlement.close()
        self.scratch.close()

        def leave() -> None:
            self._registration.close()
            self._listener.close()
            for link in list(self._links):
                link.close()

        self.loop.call(leave)
        self.loop.stop()

    # The engine's calls, on the loop thread.

    def _open(self, handle: SendHandle) -> None:
        room = self._book.rooms.setdefault(handle.room, Room(handle.room))
        if room.handle is not None:
            handle._life.settle()
            handle._life.fail(Failure("PD4023", f"room {handle.room} is open already", "prefill"))
            return
        self._book.ended.forget(handle.room)
        room.handle = handle
        room.timer = Timer(self.loop, lambda failure: self._fail(room, failure))
        room.timer.arm(self.options.bootstrap_s, lambda: self._unasked(room))
        self._registration.room_at(handle.room)
        fault = fallback_fault(self.me) or self._book.given_up.get(handle.room)
        if fault is not None:
            self._book.given_up.forget(handle.room)
            self._fail(room, fault)
            return
        for leg in room.legs.values():
            leg.link.send(messages.Ready(room.room, leg.attempt))
        self._progress(room)

    def _unasked(self, room: Room) -> Failure:
        """Why nobody asked: decode may not be told of this rank at all."""
        fault = self._registration.fault
        if fault is None or room.legs:
            return room.unasked(self.options)
        within = f"room {room.room}: after {self.options.bootstrap_s:g} s"
        return Failure(fault.code, f"{within}, {fault.cause}", "prefill")

    def send_room(self, handle: SendHandle, sent: Sent) -> None:
        """`SendHandle.send`, on the loop thread."""
        room = self._book.rooms.get(handle.room)
        if room is None or room.handle is not handle or room.sent is not None:
            return
        room.sent = sent
        self._progress(room)

    def fail_room(self, handle: SendHandle, failure: Failure) -> None:
        """`Handle.abort`, on the loop thread."""
        room = self._book.rooms.get(handle.room)
        if room is not None and room.handle is handle:
            self._fail(room, failure)

    # Links.

    def _accept(self, channel: Channel) -> None:
        self._links.add(Link(self.me, channel, self, connector=False))

    def ready(self, link: Link) -> None:
        """Decode ranks ask when they want."""
        self.telemetry.linked(link.name, link.handshake_s)

    def silent(self, link: Link, failure: Failure) -> None:
        """Fail what that decode rank asked for; it stays quarantined until the write returns."""
        for room in self._book.rooms_of(link):
            self._fail(room, failure)

    def broken(self, link: Link, failure: Failure) -> None:
        """Fail what that decode rank asked for, forget what it asked for too early."""
        self._links.discard(link)
        for leg in list(self._book.legs.values()):
            if leg.link is link and leg.dead:
                leg.released()
        for room in self._book.rooms_of(link):
            if room.handle is not None:
                self._fail(room, failure)
                continue
            for leg in [leg for leg in room.legs.values() if leg.link is link]:
                self._book.strike(room, leg)

    def waiting_rooms(self, link: Link) -> tuple[int, ...]:
        """Unknown here: decode names them."""
        return ()

    def refused_rooms(self, rooms: tuple[int, ...], failure: Failure) -> None:
        """These rooms will never be asked for."""
        for number in rooms:
            room = self._book.rooms.get(number)
            if room is not None and room.handle is not None:
                self._fail(room, failure)
            else:  # remembered for when the engine opens it
                self._book.given_up.put(number, failure)

    def message(self, link: Link, message: messages.AnyMessage) -> None:
        """One message about a request; unknown, late and repeated ones change nothing."""
        match message:
            case messages.Ask():
                self._ask(link, message)
            case messages.Grant(room=room, attempt=attempt):
                leg = self._book.legs.get((room, attempt))
                if leg is not None:
                    leg.granted(message)
            case messages.Confirm(room=room, attempt=attempt):
                leg = self._book.legs.get((room, attempt))
                if leg is not None and leg.written:
                    leg.confirmed = True
                    self._confirm(room)
            case messages.Failed(room=room, attempt=attempt, code=code, cause=cause, side=side):
                self._give_up(link, room, attempt, Failure(code, cause, "decode" if side == "decode" else "prefill"))
            case messages.Decline(room=room, code=code, cause=cause, side=side):
                self.refused_rooms((room,), Failure(code, cause, "decode" if side == "decode" else "prefill"))
            case messages.Query(room=room, attempt=attempt):
                gone = Failure("PD4004", f"{link.name} lost its connection", "decode")
                self._give_up(link, room, attempt, gone)
            case _:
                link.channel.fail("not a message for a prefill rank")

    def _ask(self, link: Link, ask: messages.Ask) -> None:
        if (ask.room, ask.attempt) in self._book.legs:
            return
        if any(len(data) % 8 for data in ask.indices.values()):
            link.channel.fail("ids that are no int64")
            return
        assert link.hello is not None
        rank = RankId(link.hello.rank.pp, link.hello.rank.tp)
        refusal = self._book.refusal(ask, rank, link.hello.rank.dp)
        if refusal is not None:
            link.send(messages.Failed(ask.room, ask.attempt, refusal.code, refusal.cause, refusal.side))
            link.send(messages.Settled(ask.room, ask.attempt))
            return
        mine = RankId(self.me.rank.pp, self.me.rank.tp)
        leg = Leg(ask, link, link.pair_plan.part(mine, rank), self)
        room = self._book.enter(leg, rank, link.hello.rank.dp, link.pair_plan.decode_ranks(mine))
        if room.handle is not None:
            link.send(messages.Ready(ask.room, ask.attempt))
            self._progress(room)

    def _give_up(self, link: Link, number: int, attempt: str, failure: Failure) -> None:
        """Decode no longer wants it: stop, and say so once nothing more can land."""
        leg = self._book.legs.get((number, attempt))
        if leg is None:
            if not self._settlement.unproven(number):
                link.send(messages.Settled(number, attempt))
            return
        leg.link = link
        leg.deadline.cancel()
        room = self._book.rooms.get(number)
        if room is None or leg not in room.legs.values():
            leg.report()
        elif room.handle is not None:
            self._fail(room, failure)
        else:
            self._book.strike(room, leg)
            leg.report()
            self._book.given_up.put(number, failure)

    # The life of a room.

    def _progress(self, room: Room) -> None:
        handle = room.handle
        if handle is None or room.timer is None:
            return
        if room.complete and handle._life.advance("waiting") and room.sent is None:
            room.timer.arm(self.options.waiting_s, lambda: room.unsent(self.options))
        if room.sent is None or not room.complete:
            return
        queued = []
        for leg in room.legs.values():
            if leg.queued:
                continue
            fault = index_fault(leg, room.sent.indices)
            if fault is not None:
                self._fail(room, fault)
                return
            leg.queue(room.sent)
            queued.append(leg)
        if queued:
            room.timer.arm(self.options.waiting_s, lambda: room.unwritten(self.options))
        packed = [leg for leg in queued if leg.pieces]
        if packed:
            Stream(self, packed).start()

    def writing(self, leg: Leg) -> None:
        """The first byte of a leg is about to move."""
        room = self._book.rooms.get(leg.room)
        if room is None or room.handle is None or leg.dead:
            return
        leg.link.send(messages.Start(leg.room, leg.attempt))
        if room.handle._life.advance("transferring") and room.timer is not None:
            room.timer.arm(self.options.transfer_s, lambda: room.unconfirmed(self.options))

    def finished(self, leg: Leg) -> None:
        """One of a leg's jobs has come to its end, good or bad."""
        room = self._book.rooms.get(leg.room)
        if leg.dead:
            if not leg.jobs:
                self._settlement.settle(leg)
        elif leg.failure is not None and room is not None:
            self._fail(room, leg.failure)
        elif leg.written and room is not None and room.sent is not None:
            leg.record(self.telemetry)
            leg.link.send(messages.Done(leg.room, leg.attempt, room.sent.metadata, leg.sums))

    def _confirm(self, number: int) -> None:
        room = self._book.rooms.get(number)
        if room is None or room.handle is None or not room.confirmed:
            return
        self._book.close(room)
        self._registration.room_over(number)
        for leg in room.legs.values():
            self._book.drop(leg)
        room.handle._life.settle()
        room.handle._life.advance("confirmed")
        self.telemetry.ended(room.room, "", "", "", room.handle._life.reached)

    def _fail(self, room: Room, failure: Failure) -> None:
        handle = room.handle
        if handle is None or not handle._life.fail(failure):
            return
        self._book.close(room)
        self._registration.room_over(room.room, failed=True)
        self._book.ended.put(room.room, failure)
        self.telemetry.ended(room.room, failure.code, failure.side, failure.cause, handle._life.reached)
        for leg in room.legs.values():
            leg.stop()
            leg.link.send(messages.Failed(room.room, leg.attempt, failure.code, failure.cause, failure.side))
            leg.released = lambda: self._maybe_free(room)
            if not leg.jobs:
                self._settlement.settle(leg)
        self._maybe_free(room)

    def _maybe_free(self, room: Room) -> None:
        if room.handle is not None and room.free:
            room.handle._life.settle()

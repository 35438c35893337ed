"""The sending side as a state machine: the rooms of one prefill rank, and the legs that serve the decode ranks.

A room is complete when every decode rank that this rank feeds has asked; each is a *leg*. The work for a leg is
`working.py`'s, its end `settling.py`'s. The room is confirmed when all its legs are; the first leg that fails for good
fails all. A connection that ends changes nothing by itself: what matters is said again on the next one.
"""

from collections.abc import Callable

from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Peer
from pdctl_transfer.session.machine.hearing import Hearing
from pdctl_transfer.session.machine.leg import Cut, Leg, Room
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say

Cutter = Callable[[Peer, say.Ask, object], Cut | Failure]
"""Cuts the work for a leg, given what the engine sent; or says why the two sides' ids do not belong together."""


class Sender(Hearing):
    """See the module. `cut` is asked once a leg; `unregistered`: why decode is not told of this rank, if it is not."""

    def __init__(
        self, options: Options, cut: Cutter, unregistered: Callable[[], Failure | None] = lambda: None
    ) -> None:
        super().__init__(options)
        self._cut, self._unregistered = cut, unregistered
        self._broken: dict[Peer, Failure] = {}
        """Peers whose connection ended and is expected back."""

    @property
    def idle(self) -> bool:
        """Nothing is open, and nothing reads or writes."""
        return not self._handles and not self.legs

    def _take(self, event: on.AnyEvent) -> None:
        match event:
            case on.Heard():
                self._heard(event.peer, event.message)
            case on.Asked():
                self._asked(event)
            case on.JobDone():
                for result in event.results:
                    self._over(event.job, result)
            case on.JobBroke():
                self._broke(event)
            case on.Began(leg=key):
                self._began(key)
            case on.Faltered(leg=key, failure=failure, again=again):
                leg = self.legs.get(key)
                if leg is not None and leg.stopped is None:
                    self._faltered(leg, failure, again=again)
            case on.Opened():
                self._opened(event)
            case on.Sent():
                room = self._handles.get(event.handle)
                if room is not None and not room.whole:
                    room.sends.append(event.what)
                    room.metadata, room.whole = event.metadata, event.last
                    self._progress(room)
            case on.Aborted():
                room = self._handles.get(event.handle)
                if room is not None:
                    self._fail(room, event.failure)
            case on.TimerFired():
                self._fired(event.timer)
            case _:
                self._linked(event)

    # Links.

    def _linked(self, event: on.AnyEvent) -> None:
        match event:
            case on.LinkReady(peer=peer):
                self._broken.pop(peer, None)
                self.lost.pop(peer, None)
                self.do(do.Cancel(("peer", peer)))
                for leg in self.legs_of(peer):
                    self._again(leg)
            case on.LinkBroken(peer=peer, failure=failure, closed=closed):
                self._broken[peer] = failure
                if closed:
                    self._lose(peer)
                else:
                    self.do(do.Arm(("peer", peer), self.now + self._options.regain_s))
            case on.LinkSilent(peer=peer, failure=failure):
                self._fail_rooms_of(peer, failure)
            case on.Closing(failure=failure):
                self._closing = failure
                for room in list(self.rooms.values()):
                    if room.handle is not None:
                        self._fail(room, failure)
                    for leg in list(room.legs.values()):
                        self._strike(room, leg, failure, tell=True)

    def _again(self, leg: Leg) -> None:
        """A new connection: say what decode may not have heard. The rest it asks for again."""
        if leg.stopped is not None:
            self._tell_failed(leg, leg.stopped)
            if leg.unproven and not leg.jobs:
                self.prove(leg)
        elif leg.written and not leg.confirmed:
            self._tell_done(leg)

    def _lose(self, peer: Peer) -> None:
        """The peer did not come back: what it asked for has failed, and nothing of it is waited for."""
        failure = self._broken.pop(peer, None)
        self.do(do.Cancel(("peer", peer)))
        if failure is None:
            return
        if self.legs_of(peer):
            self.lost[peer] = self.now
        self._fail_rooms_of(peer, failure)
        for leg in self.legs_of(peer):
            room = self.rooms.get(leg.key[0])
            if leg.stopped is not None:
                self.free(leg)
            elif room is not None:
                self._strike(room, leg, failure, tell=True)

    def _fail_rooms_of(self, peer: Peer, failure: Failure) -> None:
        for room in list(self.rooms.values()):
            if room.handle is not None and any(leg.peer == peer for leg in room.legs.values()):
                self._fail(room, failure)

    # The life of a room.

    def _opened(self, event: on.Opened) -> None:
        room = self.rooms.setdefault(event.room, Room(event.room))
        if room.handle is not None or self._closing is not None:
            failure = self._closing or Failure("PD4023", f"room {event.room} is open already", "prefill")
            self.do(do.End(event.handle, failure), do.Release(event.handle))
            if room.handle is None and not room.legs:
                del self.rooms[event.room]
            return
        self._ended.forget(event.room)
        room.handle = event.handle
        self._handles[event.handle] = room
        self.do(
            do.Arm(("room", event.handle), self.now + self._options.bootstrap_s), do.Announce(event.room, open=True)
        )
        fault = event.fault or self._given_up.get(event.room, self.now)
        if fault is not None:
            self._given_up.forget(event.room)
            self._fail(room, fault)
            return
        for leg in room.legs.values():
            self._tell(leg)
        self._progress(room)

    def _progress(self, room: Room) -> None:
        if room.handle is None or not room.complete:
            return
        if room.state == "bootstrapping":
            self.do(do.Spare(room.handle, room.skip))
            self._enter(room, "waiting", self._options.waiting_s)
        fresh = {n: [leg for leg in room.legs.values() if len(leg.cuts) <= n] for n in range(len(room.sends))}
        for n, legs in fresh.items():
            for leg in legs:
                cut = self._cut(leg.peer, leg.ask, room.sends[n])
                if isinstance(cut, Failure):
                    self._fail(room, cut)
                    return
                leg.queue(cut, last=room.whole and n == len(room.sends) - 1)
                self.do(*(do.SendMessage(leg.peer, one) for one in leg.more[n:]))
        if any(fresh.values()):
            seconds = self._options.waiting_s if room.state == "waiting" else self._transfer_s(room)
            self.do(do.Arm(("room", room.handle), self.now + seconds))
        for n, legs in fresh.items():
            packed = [leg for leg in legs if ("packed", n) in leg.items and not leg.mending]
            if packed:
                self._pack(packed, n)
        for leg in room.legs.values():
            self._work(leg)

    def _confirm(self, number: int) -> None:
        room = self.rooms.get(number)
        if room is None or room.handle is None or not room.confirmed:
            return
        self._close(room, failed=False)
        for leg in room.legs.values():
            self.give_back(leg)
            self.forget(leg, None)
        self.do(do.End(room.handle, None), do.Release(room.handle))

    def _fired(self, timer: on.Timer) -> None:
        match timer:
            case ("room", handle):
                room = self._handles.get(handle)
                if room is not None:
                    self._fail(room, self._overdue(room))
            case ("peer", peer):
                self._lose(peer)
            case ("prove", key):
                leg = self.legs.get(key)
                if leg is not None and not leg.jobs and leg.may_write:
                    self.prove(leg)

    def _overdue(self, room: Room) -> Failure:
        fault = self._unregistered() if room.state == "bootstrapping" and not room.legs else None
        if fault is None:
            return room.overdue(self._options)
        within = f"room {room.number}: after {self._options.bootstrap_s:g} s"
        return Failure(fault.code, f"{within}, {fault.cause}", fault.side)

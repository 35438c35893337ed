"""The sending side as a state machine: the rooms of one prefill rank, and the legs that serve the decode ranks.

A room is complete when every decode rank that this rank feeds has asked; each is a *leg*. The work for a leg is
`working.py`'s, its end `settling.py`'s. The room is confirmed when all its legs are; the first leg that fails for good
fails all. A connection that ends changes nothing by itself: what matters is said again on the next one.
"""

from collections.abc import Callable

from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.leg import Cut, Leg, Room
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.machine.working import Working
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say

Cutter = Callable[[Peer, say.Ask, object], Cut | Failure]
"""Cuts the work for a leg, given what the engine sent; or says why the two sides' ids do not belong together."""


class Sender(Working):
    """See the module. `cut` is asked once a leg; `unregistered`: why decode is not told of this rank, if it is not."""

    def __init__(
        self, options: Options, cut: Cutter, unregistered: Callable[[], Failure | None] = lambda: None
    ) -> None:
        super().__init__(options)
        self._cut, self._unregistered = cut, unregistered
        self._given_up: Recent[int, Failure] = Recent(options.bootstrap_s)
        """Rooms that decode gave up before they were opened here."""
        self._broken: dict[Peer, Failure] = {}
        """Peers whose connection ended and is expected back."""
        self._closing: Failure | None = None

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

    # What decode says.

    def _heard(self, peer: Peer, message: say.AnyMessage) -> None:
        """Unknown, late, repeated and misplaced messages change nothing."""
        match message:
            case say.Grant(room=room, attempt=attempt, chunk=chunk, base=base):
                leg = self.legs.get((room, attempt))
                if leg is not None and leg.stopped is None and leg.items.get(chunk) is False and chunk not in leg.bases:
                    leg.bases[chunk] = base
                    self._work(leg)
            case say.Confirm(room=room, attempt=attempt):
                leg = self.legs.get((room, attempt))
                if leg is not None and leg.written and leg.stopped is None:
                    leg.confirmed = True
                    self._confirm(room)
            case say.Failed(room=room, attempt=attempt, code=code, cause=cause, side=side):
                self._give_up(peer, (room, attempt), Failure(code, cause, side))
            case say.Withdraw(room=room, attempt=attempt):
                self._give_up(peer, (room, attempt), None)
            case say.Decline(room=number, code=code, cause=cause, side=side):
                self._declined(number, Failure(code, cause, side))

    def _asked(self, event: on.Asked) -> None:
        ask = event.ask
        key = (ask.room, ask.attempt)
        leg = self.legs.get(key)
        if leg is not None:
            self._tell(leg)
            return
        known = self.over.knows(key, self.now)
        refusal = self.over.get(key, self.now) if known else self._refusal(event)
        if refusal is not None:
            self.refuse(event.peer, key, refusal)
        if refusal is not None or known:  # known without a failure: it was confirmed, this is a late repetition
            return
        leg = self.legs[key] = Leg(event.peer, event.rank, ask)
        self._given_up.forget(ask.room)
        room = self.rooms.setdefault(ask.room, Room(ask.room))
        room.dp, room.expected = event.dp, event.expected
        room.legs[event.rank] = leg
        self._tell(leg)
        self._progress(room)

    def _refusal(self, event: on.Asked) -> Failure | None:
        """Why this cannot be asked for: it failed already, or somebody else asked."""
        number = event.ask.room
        room = self.rooms.get(number)
        if room is not None and (event.rank in room.legs or (room.legs and room.dp != event.dp)):
            return Failure("PD4023", f"room {number} was asked for by another decode {tuple(event.rank)}", "decode")
        return self._ended.get(number, self.now) or self._closing

    def _give_up(self, peer: Peer, key: Key, failure: Failure | None) -> None:
        """Decode no longer wants it: stop, and say so once nothing more can land. No failure: it asked in error."""
        leg = self.legs.get(key)
        why = failure or withdrawn(key[0])
        if leg is None:  # never heard of, or settled: it must not be begun by a late `Ask`
            self.nothing(peer, key, self.over.get(key, self.now) or why)
            return
        room = self.rooms.get(key[0])
        if leg.stopped is not None or room is None:
            return
        if room.handle is not None:
            self._fail(room, why)
            return
        self._strike(room, leg, why, tell=False)
        if failure is not None:
            self._given_up.put(key[0], failure, self.now)

    def _declined(self, number: int, failure: Failure) -> None:
        room = self.rooms.get(number)
        if room is not None and room.handle is not None:
            self._fail(room, failure)
        else:  # remembered for when the engine opens it
            self._given_up.put(number, failure, self.now)

    def _tell(self, leg: Leg) -> None:
        """All that decode should know of a leg; repeated, it changes nothing there."""
        room = self.rooms.get(leg.key[0])
        if leg.stopped is not None:
            self._tell_failed(leg, leg.stopped)
            return
        if room is not None and room.handle is not None:
            self.do(do.SendMessage(leg.peer, say.Ready(*leg.key)))
        self.do(*(do.SendMessage(leg.peer, one) for one in self._more_again(leg)))
        if leg.started:
            self.do(do.SendMessage(leg.peer, say.Start(*leg.key, bool(leg.more))))
        for item, done in leg.items.items():
            if done and isinstance(item, int):
                self.do(do.SendMessage(leg.peer, say.Landed(*leg.key, item)))
        if leg.written:
            self._tell_done(leg)

    def _more_again(self, leg: Leg) -> list[say.More]:
        """Installments of which decode may not have heard."""
        return leg.more

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

    def _strike(self, room: Room, leg: Leg, failure: Failure, *, tell: bool) -> None:
        """A leg that was asked for too early is no longer wanted. `tell`: decode does not know it yet."""
        if room.handle is not None or room.legs.get(leg.rank) is not leg:
            return
        del room.legs[leg.rank]
        if not room.legs:
            self.rooms.pop(room.number, None)
        self.forget(leg, failure)
        (self.refuse if tell else self.nothing)(leg.peer, leg.key, failure)

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


def withdrawn(number: int) -> Failure:
    """Decode found that another rank serves the room."""
    return Failure("PD4032", f"room {number}: decode asks another rank for it", "decode")

"""What decode says to a prefill rank: it asks for a room, grants staging, confirms, gives up. And what it is told.

Decode says again after a cut what matters, and may ask before the engine has opened the room, or after it has failed.
"""

from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.leg import Leg, Room
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.machine.working import Working
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say


class Hearing(Working):
    """The part of a sender that hears decode ranks."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._given_up: Recent[int, Failure] = Recent(options.bootstrap_s)
        """Rooms that decode gave up before they were opened here."""
        self._closing: Failure | None = None

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

    def _strike(self, room: Room, leg: Leg, failure: Failure, *, tell: bool) -> None:
        """A leg that was asked for too early is no longer wanted. `tell`: decode does not know it yet."""
        if room.handle is not None or room.legs.get(leg.rank) is not leg:
            return
        del room.legs[leg.rank]
        if not room.legs:
            self.rooms.pop(room.number, None)
        self.forget(leg, failure)
        (self.refuse if tell else self.nothing)(leg.peer, leg.key, failure)

    def _progress(self, room: Room) -> None:
        raise NotImplementedError

    def _confirm(self, number: int) -> None:
        raise NotImplementedError


def withdrawn(number: int) -> Failure:
    """Decode found that another rank serves the room."""
    return Failure("PD4032", f"room {number}: decode asks another rank for it", "decode")

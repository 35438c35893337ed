"""The work for legs: what is started, what it came to, and what is done again.

A leg is cut into items, an item is done by a job. A write that broke is settled first and then done again; the first
leg that fails for good fails its room.
"""

from typing import Final

from pdctl_transfer.session.failure import Failure, State
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key
from pdctl_transfer.session.machine.leg import Item, Leg, Room
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.machine.settling import Settling
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say

TRIES: Final = 3
"""How often a write is begun before its failure is the room's."""


class Working(Settling):
    """The part of a sender that deals with jobs."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self.rooms: dict[int, Room] = {}
        self._handles: dict[int, Room] = {}
        self._ended: Recent[int, Failure] = Recent(options.bootstrap_s)
        """Rooms that failed here, for decode ranks that ask too late."""

    def _enter(self, room: Room, state: State, seconds: float) -> None:
        assert room.handle is not None
        room.state = state
        self.do(do.Advance(room.handle, state), do.Arm(("room", room.handle), self.now + seconds))

    def _transfer_s(self, room: Room) -> float:
        """What it may take until all is confirmed, or the engine sends more."""
        return self._options.transfer_s + (0.0 if room.whole else self._options.waiting_s)

    def _pack(self, legs: list[Leg], number: int) -> None:
        """One job for all, so that their connections are busy in turn."""
        job = self.start(do.Packed(tuple(leg.key for leg in legs), number))
        for leg in legs:
            leg.jobs[job] = ("packed", number)

    def _work(self, leg: Leg) -> None:
        """Start what can be done now."""
        if leg.mending:
            return
        for item in leg.todo():
            match item:
                case int(chunk):
                    job = self.start(do.Staged(leg.key, chunk, leg.bases[chunk]))
                case "sum":
                    job = self.start(do.Sum(leg.key))
                case ("straight", n):
                    job = self.start(do.Straight(leg.key, n))
                case (_, n):
                    job = self.start(do.Packed((leg.key,), n))
            leg.jobs[job] = item

    def _began(self, key: Key) -> None:
        leg = self.legs.get(key)
        if leg is None or leg.stopped is not None or leg.started:
            return
        leg.started = True
        self.do(do.SendMessage(leg.peer, say.Start(*key, bool(leg.more))))
        room = self.rooms[key[0]]
        if room.state == "waiting":
            self._enter(room, "transferring", self._transfer_s(room))

    def _over(self, job: int, result: on.Result) -> None:
        """A job has ended for one leg, good or bad."""
        leg = self.legs.get(result.leg)
        if leg is None or job not in leg.jobs:
            self.do(do.GiveBack(result.held))
            return
        item = leg.jobs.pop(job)
        leg.held += result.held
        if item == "prove":
            self._proved(leg, proven=result.ok)
            return
        leg.may_write |= not result.settled
        leg.sums |= result.sums
        if result.ok:
            self._did(leg, item)
        elif leg.stopped is None and result.failure is not None:
            self._faltered(leg, result.failure, again=result.again)
        self._settle_next(leg)

    def _did(self, leg: Leg, item: Item) -> None:
        leg.items[item] = True
        if isinstance(item, int) and leg.stopped is None:
            self.do(do.SendMessage(leg.peer, say.Landed(*leg.key, item)))
        if leg.written and leg.stopped is None:
            leg.failure, leg.mending = None, False
            self._tell_done(leg)  # decode waits for it, nobody for the figures
            self.do(do.Count(leg.key))

    def _broke(self, event: on.JobBroke) -> None:
        """A defect: it fails the room of every leg that the job served."""
        legs = [leg for leg in self.legs.values() if event.job in leg.jobs]
        for leg in legs[:1]:
            leg.held += event.held
        for leg in legs:
            if leg.jobs.pop(event.job) == "prove":
                self._proved(leg, proven=False)
                continue
            leg.may_write |= not event.settled
            room = self.rooms.get(leg.key[0])
            if leg.stopped is None and room is not None:
                self._fail(room, event.failure)
            else:
                self._settle_next(leg)

    def _faltered(self, leg: Leg, failure: Failure, *, again: bool) -> None:
        """A write failed: once nothing of it is under way it is done again, or the room has failed."""
        leg.failure = leg.failure or failure
        if leg.mending:
            return
        leg.tries += 1
        if again and leg.tries < TRIES:
            leg.mending = True
            return
        self._fail(self.rooms[leg.key[0]], failure)

    def _settle_next(self, leg: Leg) -> None:
        """Once no job of it is left: go on, or come to its end."""
        if leg.jobs:
            return
        if leg.stopped is not None:
            self.settle(leg)
        elif leg.mending and leg.may_write:
            self.prove(leg)
        elif leg.mending:
            self._mended(leg)

    def _mended(self, leg: Leg) -> None:
        """Nothing of the broken write is under way: again."""
        leg.mending = False
        self.give_back(leg)
        self._work(leg)

    def _proved(self, leg: Leg, *, proven: bool) -> None:
        leg.may_write = leg.may_write and not proven
        if leg.stopped is not None and leg.may_write:
            self.settle_later(leg)
        elif leg.stopped is not None:
            self.settle(leg)
        elif leg.may_write:
            self.prove_later(leg)
        else:
            self._mended(leg)

    def _fail(self, room: Room, failure: Failure) -> None:
        if room.handle is None or self.rooms.get(room.number) is not room:
            return
        self._close(room, failed=True)
        self._ended.put(room.number, failure, self.now)
        self.do(do.End(room.handle, failure))
        self.stop(room, failure)

    def _close(self, room: Room, *, failed: bool) -> None:
        assert room.handle is not None
        self._handles.pop(room.handle, None)
        self.do(do.Cancel(("room", room.handle)), do.Announce(room.number, open=False, failed=failed))
        self.rooms.pop(room.number, None)

    def _tell_done(self, leg: Leg) -> None:
        room = self.rooms.get(leg.key[0])
        if room is not None:
            self.do(do.SendMessage(leg.peer, say.Done(*leg.key, room.metadata, leg.sums)))

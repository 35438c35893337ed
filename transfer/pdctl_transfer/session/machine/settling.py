"""When is a leg over? After a failure the fabric may go on writing: it is settled once the contrary is proven."""

from typing import Final

from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine.base import Machine
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.leg import Leg, Room
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.wire import messages as say

PROVE_EVERY_S: Final = 1.0
UNPROVEN_S: Final = 60.0
"""How long what a leg holds is kept for a peer that was lost: by then whatever reads it can only reach memory that the
peer keeps in quarantine."""
REMEMBER_S: Final = 3600.0


class Settling(Machine):
    """The end of legs, and of the buffers of rooms that failed."""

    def __init__(self) -> None:
        super().__init__()
        self.legs: dict[Key, Leg] = {}
        """Legs that are not settled."""
        self.over: Recent[Key, Failure | None] = Recent(REMEMBER_S)
        """Attempts that are settled, and how they ended: they must not be begun again by a late `Ask`."""
        self.lost: dict[Peer, float] = {}
        """Peers that did not come back, and since when."""
        self._ending: dict[Key, int] = {}
        """Legs of failed rooms, and the handle whose buffers they use."""

    def legs_of(self, peer: Peer) -> list[Leg]:
        """The legs of this peer that are not settled."""
        return [leg for leg in self.legs.values() if leg.peer == peer]

    def stop(self, room: Room, failure: Failure) -> None:
        """The room has failed: let its jobs end, and settle its legs."""
        assert room.handle is not None
        legs = list(room.legs.values())
        for leg in legs:
            self._ending[leg.key] = room.handle
        for leg in legs:
            leg.stopped = failure
            self.do(do.Cancel(("prove", leg.key)))
            self._tell_failed(leg, failure)
            self.do(*(do.AbandonJob(job) for job, item in leg.jobs.items() if item != "prove"))
        for leg in legs:
            if not leg.jobs:
                self.settle(leg)
        if not legs:
            self.do(do.Release(room.handle))

    def settle(self, leg: Leg) -> None:
        """No job of it is left: at once where nothing can be under way, else when that has been proven."""
        if leg.may_write:
            self.free(leg)
            self.prove(leg)
            return
        self.give_back(leg)
        self.forget(leg, leg.stopped)
        self.do(do.SendMessage(leg.peer, say.Settled(*leg.key)))
        self.free(leg)

    def settle_later(self, leg: Leg) -> None:
        """Not proven: look again. Of a peer that was lost long ago nothing is kept any more but that it is unproven."""
        self.free(leg)
        since = self.lost.get(leg.peer)
        leg.unproven = since is not None and self.now - since >= UNPROVEN_S
        if leg.unproven:
            self.give_back(leg)
        self.prove_later(leg, UNPROVEN_S if leg.unproven else PROVE_EVERY_S)

    def prove(self, leg: Leg) -> None:
        """Ask the fabric; scratch that its write may still read is not to be counted on."""
        leg.jobs[self.start(do.Prove(leg.key))] = "prove"
        if leg.held:
            self.do(do.Stuck(tuple(leg.held)))

    def prove_later(self, leg: Leg, seconds: float = PROVE_EVERY_S) -> None:
        """Ask again in a while."""
        self.do(do.Arm(("prove", leg.key), self.now + seconds))

    def free(self, leg: Leg) -> None:
        """The buffers of its room are free when no leg can read them: settled, or its peer is lost and no job runs."""
        handle = self._ending.get(leg.key)
        if handle is None:
            return
        if leg.key in self.legs and (leg.peer not in self.lost or leg.writing):
            return
        del self._ending[leg.key]
        if handle not in self._ending.values():
            self.do(do.Release(handle))

    def give_back(self, leg: Leg) -> None:
        """What its writes read from is free."""
        if leg.held:
            self.do(do.GiveBack(tuple(leg.held)))
            leg.held = []

    def forget(self, leg: Leg, failure: Failure | None) -> None:
        """It is settled, or was confirmed."""
        self.legs.pop(leg.key, None)
        if leg.peer in self.lost and not self.legs_of(leg.peer):
            self.lost.pop(leg.peer, None)
        self.over.put(leg.key, failure, self.now)
        self.do(do.Cancel(("prove", leg.key)), do.Forget(leg.key))

    def refuse(self, peer: Peer, key: Key, failure: Failure) -> None:
        """Nothing of it will be written, and why."""
        self.do(do.SendMessage(peer, say.Failed(*key, failure.code, failure.cause, failure.side)))
        self.nothing(peer, key, failure)

    def nothing(self, peer: Peer, key: Key, failure: Failure) -> None:
        """Nothing of it is or will be written, as decode wishes."""
        self.over.put(key, failure, self.now)
        self.do(do.SendMessage(peer, say.Settled(*key)))

    def _tell_failed(self, leg: Leg, failure: Failure) -> None:
        self.do(do.SendMessage(leg.peer, say.Failed(*leg.key, failure.code, failure.cause, failure.side)))

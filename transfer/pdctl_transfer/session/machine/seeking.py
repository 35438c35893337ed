"""Finding the prefill ranks of a request, and asking them: again after a cut, others where it was the wrong ones."""

from typing import Final

from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.lending import Lending
from pdctl_transfer.session.machine.request import Request, Source
from pdctl_transfer.session.wire import messages as say

AGAIN_S: Final = 0.5
"""Between two questions to the registry about a request whose ranks do not answer."""
REMIND_S: Final = 5.0
"""Between two words to a rank that has not said yet that it writes nothing more."""


class Seeking(Lending):
    """The part of a receiver that deals with whom to ask."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.requests: dict[Key, Request] = {}
        """Requests that have not ended, or are not settled."""
        self._ready: set[Peer] = set()
        """Peers that are linked."""

    def needs(self, peer: Peer) -> bool:
        """Whether a link to this peer is of use: something of it is awaited, or may still land."""
        return any(
            source.peer == peer and (request.waits_for(peer) or not source.settled)
            for request in self.requests.values()
            for source in [*request.sources.values(), *request.leaving]
        )

    def _seek(self, request: Request) -> None:
        request.seeking = True
        self.do(do.Find(request.key, request.room, request.registry))

    def _seek_again(self, request: Request) -> None:
        """Perhaps other ranks serve the room now, or the same ones from elsewhere."""
        if not request.seeking and not request.all_ready:
            self.do(do.Arm(("seek", request.key), self.now + AGAIN_S))

    def _seek_no_more(self, request: Request) -> None:
        """Whoever serves a failed request was not found in time to hear of it."""
        request.seeking = False
        self.do(do.Unfind(request.key))
        self._release(request)

    def _routed(self, event: on.Routed) -> None:
        request = self.requests.get(event.key)
        if request is None:
            return
        request.missing = event.missing
        if event.missing:
            return
        request.seeking = False
        if request.failure is not None:  # given up before it was known whom to ask
            for target in event.targets:
                self.do(do.Want(target.peer, target.address))
                self._decline(request, target.peer)
            self._release(request)
            return
        self._aim(request, event.targets)
        if event.changes:
            self._seek_again(request)

    def _aim(self, request: Request, targets: tuple[on.Target, ...]) -> None:
        """Ask these. Who was asked in error is told so, and must have answered before anybody else is asked."""
        if [(s.rank, s.peer) for s in request.sources.values()] == [(t.rank, t.peer) for t in targets]:
            return
        asked = [source for source in request.sources.values() if source.asked]
        if any(source.started or source.ready for source in asked):
            return
        for source in asked:
            self.do(do.SendMessage(source.peer, say.Withdraw(*request.key)))
        request.leaving += [source for source in asked if not source.settled]
        if request.leaving:
            self.do(do.Arm(("remind", request.key), self.now + REMIND_S))
        request.sources, request.next = {}, targets
        self._aim_next(request)

    def _aim_next(self, request: Request) -> None:
        """Once nobody who was asked in error can write: ask whom the registry names now."""
        if not request.next or not all(source.settled for source in request.leaving):
            return
        request.leaving = []
        request.sources = {target.rank: Source(target) for target in request.next}
        request.next = ()
        for source in request.sources.values():
            self.do(do.Want(source.peer, source.address))
        for source in list(request.sources.values()):
            self._ask(request, source)

    def _ask(self, request: Request, source: Source) -> None:
        """Say all that the source should know, where it is linked: also again, after a cut."""
        if source.peer not in self._ready:
            return
        if source in request.leaving:
            self.do(do.SendMessage(source.peer, say.Withdraw(*request.key)))
        elif request.failure is not None:
            if not source.settled:
                self._tell_failed(source.peer, request.key, request.failure)
                if not source.ready:  # it may never have heard of the request
                    self._decline(request, source.peer)
        elif not source.done:
            source.asked, source.settled = True, False
            self.do(do.AskFor(request.key, source.rank, source.peer))
            self.grant_again(request, source)

    def _release(self, request: Request) -> None:
        """Its buffers are free once nothing can land; it is forgotten when nobody needs to hear of it either."""
        if request.open or not request.settled or self.requests.get(request.key) is not request:
            return
        self.give_back(request)
        if not request.released:
            request.released = True
            self.do(do.Release(request.handle))
        if not request.seeking:
            del self.requests[request.key]
            self.do(do.Cancel(("remind", request.key)), do.Forget(request.key))

    def _tell_failed(self, peer: Peer, key: Key, failure: Failure) -> None:
        self.do(do.SendMessage(peer, say.Failed(*key, failure.code, failure.cause, failure.side)))

    def _decline(self, request: Request, peer: Peer) -> None:
        failure = request.failure
        assert failure is not None
        self.do(do.SendMessage(peer, say.Decline(request.room, failure.code, failure.cause, failure.side)))

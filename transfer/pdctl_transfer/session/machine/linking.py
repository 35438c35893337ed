"""What becomes of requests when a connection to a prefill rank comes, ends or does not come back.

A cut changes nothing by itself: what is asked for is asked again. Who has not come back in time, refuses, is silent or
has ended fails what it was asked for; who had not been asked may still be found elsewhere.
"""

from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Peer
from pdctl_transfer.session.machine.request import Request
from pdctl_transfer.session.machine.seeking import Seeking
from pdctl_transfer.session.options import Options


class Linking(Seeking):
    """The part of a receiver that deals with connections."""

    def __init__(self, options: Options, slots: int) -> None:
        super().__init__(slots)
        self._options = options
        self._rooms: dict[int, Request] = {}
        """Requests that have not ended."""
        self._broken: dict[Peer, Failure] = {}
        """Why a peer is not linked."""

    def _linked(self, event: on.AnyEvent) -> None:
        match event:
            case on.LinkReady(peer=peer):
                self._ready.add(peer)
                self._broken.pop(peer, None)
                self.do(do.Cancel(("peer", peer)))
                for request in list(self.requests.values()):
                    for source in [*request.sources.values(), *request.leaving]:
                        if source.peer == peer:
                            self._ask(request, source)
            case on.LinkBroken(peer=peer, failure=failure, closed=closed):
                self._ready.discard(peer)
                self._broken[peer] = failure
                if closed:
                    self._fail_waiting(peer, failure)
                else:
                    self.do(do.Arm(("peer", peer), self.now + self._options.regain_s))
            case on.LinkFailed(peer=peer, failure=failure) if peer not in self._ready:
                self._broken.setdefault(peer, failure)
                for request in self._waiting_for(peer):
                    self._seek_again(request)
            case on.LinkRefused(peer=peer, failure=failure) | on.LinkSilent(peer=peer, failure=failure):
                self._fail_waiting(peer, failure)
            case on.PeerGone(peer=peer, failure=failure):
                self._gone(peer, failure)

    def _gone(self, peer: Peer, failure: Failure) -> None:
        """Its process has ended: who asked it has failed, who had not looks it up again; nothing of it can land."""
        self._ready.discard(peer)
        self._broken[peer] = failure
        self.do(do.Cancel(("peer", peer)))
        for request in list(self.requests.values()):
            for source in [*request.sources.values(), *request.leaving]:
                if source.peer != peer:
                    continue
                source.settled = True
                if request.open and source.asked and not source.done:
                    self._fail(request, failure)
                elif request.open and not source.asked:
                    self._seek_again(request)
            self._aim_next(request)
            self._release(request)

    def _waiting_for(self, peer: Peer) -> list[Request]:
        return [request for request in self._rooms.values() if request.waits_for(peer)]

    def _fail_waiting(self, peer: Peer, failure: Failure) -> None:
        for request in self._waiting_for(peer):
            self._fail(request, failure)

    def _fail_asked(self, peer: Peer, failure: Failure) -> None:
        """It did not come back in time. Who had not asked it may still wait."""
        for request in self._waiting_for(peer):
            source = request.source_of(peer)
            if source is not None and source.asked:
                self._fail(request, failure)

    def _fail(self, request: Request, failure: Failure) -> None:
        raise NotImplementedError

"""The receiving side as a state machine: the requests of one decode rank, and the prefill ranks that write them.

A request looks up its *sources*, asks each, and is confirmed when all of them are done and what landed was looked at.
Whatever ends it otherwise, its buffers stay quarantined until each source has said that nothing more will land, or its
process is shown to have ended. A connection that ends changes nothing by itself: the request asks again on the next.
"""

from collections.abc import Callable
from typing import Final

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import Failure, State
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.lending import Lending
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.machine.request import Request, Source
from pdctl_transfer.session.machine.settling import REMEMBER_S
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say

AGAIN_S: Final = 0.5
"""Between two questions to the registry about a request whose ranks do not answer."""
REMIND_S: Final = 5.0
"""Between two words to a rank that has not said yet that it writes nothing more."""


class Receiver(Lending):
    """See the module.

    slots: of the staging area. chunks: how many staged chunks a source of a request has, once it was asked.
    registry: why a registry does not answer; None where it does.
    """

    def __init__(
        self,
        options: Options,
        slots: int,
        chunks: Callable[[Key, RankId], int],
        registry: Callable[[tuple[str, int]], Failure | None],
    ) -> None:
        super().__init__(slots)
        self._options, self._chunks, self._registry = options, chunks, registry
        self.requests: dict[Key, Request] = {}
        """Requests that have not ended, or are not settled."""
        self._rooms: dict[int, Request] = {}
        self._handles: dict[int, Request] = {}
        self._ready: dict[Peer, str] = {}
        self._broken: dict[Peer, Failure] = {}
        """Why a peer is not linked."""
        self._over: Recent[Key, Failure | None] = Recent(REMEMBER_S)
        """Requests that ended, for prefill ranks that speak of them late."""
        self._closing: Failure | None = None

    @property
    def open(self) -> int:
        """Requests that have not ended."""
        return len(self._rooms)

    @property
    def idle(self) -> bool:
        """Nothing is open, and nothing can land."""
        return all(request.released for request in self.requests.values())

    @property
    def quarantined(self) -> int:
        """Requests that have failed and whose buffers may not be used again yet."""
        return sum(not request.open and not request.released for request in self.requests.values())

    def needs(self, peer: Peer) -> bool:
        """Whether a link to this peer is of use: something of it is awaited, or may still land."""
        return any(
            source.peer == peer and (request.waits_for(peer) or not source.settled)
            for request in self.requests.values()
            for source in [*request.sources.values(), *request.leaving]
        )

    def _take(self, event: on.AnyEvent) -> None:
        match event:
            case on.Heard():
                self._heard(event.peer, event.message)
            case on.Lent():
                self.lent(self.requests.get(event.key), event)
            case on.JobDone():
                self._done(event)
            case on.JobBroke():
                self._broke(event)
            case on.Opened():
                self._opened(event)
            case on.Routed():
                self._routed(event)
            case on.Aborted():
                request = self._handles.get(event.handle)
                if request is not None:
                    self._fail(request, event.failure)
            case on.Closing(failure=failure):
                self._closing = failure
                for request in list(self._rooms.values()):
                    self._fail(request, failure)
                for request in list(self.requests.values()):
                    self._seek_no_more(request)
            case on.TimerFired():
                self._fired(event.timer)
            case _:
                self._linked(event)

    # Links.

    def _linked(self, event: on.AnyEvent) -> None:
        match event:
            case on.LinkReady(peer=peer, name=name):
                self._ready[peer] = name
                self._broken.pop(peer, None)
                self.do(do.Cancel(("peer", peer)))
                for request in list(self.requests.values()):
                    for source in [*request.sources.values(), *request.leaving]:
                        if source.peer == peer:
                            self._ask(request, source)
            case on.LinkBroken(peer=peer, failure=failure, closed=closed):
                self._ready.pop(peer, None)
                self._broken[peer] = failure
                if closed:
                    self._fail_waiting(peer, failure)
                else:
                    self.do(do.Arm(("peer", peer), self.now + self._options.regain_s))
            case on.LinkFailed(peer=peer, failure=failure):
                self._broken.setdefault(peer, failure)
                for request in self._waiting_for(peer):
                    self._seek_again(request)
            case on.LinkRefused(peer=peer, failure=failure) | on.LinkSilent(peer=peer, failure=failure):
                self._fail_waiting(peer, failure)
            case on.PeerGone(peer=peer, failure=failure):
                self._gone(peer, failure)

    def _gone(self, peer: Peer, failure: Failure) -> None:
        """Its process has ended: who asked it has failed, who had not looks it up again; nothing of it can land."""
        self._ready.pop(peer, None)
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

    # Finding and asking.

    def _opened(self, event: on.Opened) -> None:
        key = (event.room, event.attempt)
        refusal = event.fault or self._closing
        if event.room in self._rooms:
            refusal = Failure("PD4023", f"room {event.room} is open already", "decode")
        if refusal is not None:
            self.do(do.End(event.handle, refusal), do.Release(event.handle), do.Forget(key))
            return
        request = Request(event.handle, key, event.registry)
        self._rooms[event.room] = self.requests[key] = self._handles[event.handle] = request
        self.do(do.Arm(("room", event.handle), self.now + self._options.bootstrap_s))
        self._seek(request)

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

    # What prefill says.

    def _heard(self, peer: Peer, message: say.AnyMessage) -> None:
        """Unknown, late, repeated and misplaced messages change nothing."""
        if not isinstance(message, say.ANSWERS):
            return
        key = (message.room, message.attempt)
        request = self.requests.get(key)
        source = request.source_of(peer) if request is not None else None
        if request is None or source is None:
            self._answer_late(peer, key, message)
            return
        match message:
            case say.Settled():
                if request.open and source not in request.leaving:
                    return  # of an earlier connection: it was asked again since
                source.settled = True
                self._aim_next(request)
                self._release(request)
            case say.Failed(code=code, cause=cause, side=side):
                if source not in request.leaving:
                    self._fail(request, Failure(code, cause, side))
            case _ if request.open and source.asked and source not in request.leaving:
                self._progress(request, source, message)

    def _progress(self, request: Request, source: Source, message: say.AnyMessage) -> None:
        match message:
            case say.Ready():
                source.ready = True
                if request.all_ready and request.state == "bootstrapping":
                    self._enter(request, "waiting", self._options.waiting_s)
            case say.Start():
                if not source.started:
                    source.started = source.ready = True
                    self.order(request, source, self._chunks(request.key, source.rank))
                    if request.state != "transferring":
                        self._enter(request, "transferring", self._options.transfer_s)
            case say.Landed(chunk=chunk):
                self.landed(request, source, chunk)
            case say.Done(metadata=metadata, sums=sums):
                self._progress(request, source, say.Start(*request.key))
                if not source.done:
                    source.done, source.settled, source.sums = True, True, sums
                    self.do(do.Deliver(request.handle, metadata))
                    self._look(request)

    def _answer_late(self, peer: Peer, key: Key, message: say.AnyMessage) -> None:
        """Prefill speaks of a request that has ended here: how it ended."""
        if not self._over.knows(key, self.now) or isinstance(message, say.Failed | say.Settled):
            return
        failure = self._over.get(key, self.now)
        if failure is not None:
            self._tell_failed(peer, key, failure)
        elif isinstance(message, say.Done):
            self.do(do.SendMessage(peer, say.Confirm(*key)))

    # The life of a request.

    def _enter(self, request: Request, state: State, seconds: float) -> None:
        request.state = state
        self.do(do.Advance(request.handle, state), do.Arm(("room", request.handle), self.now + seconds))

    def _look(self, request: Request) -> None:
        """Something came into place: when all is, look at it, then confirm."""
        if request.open and request.complete and request.checking is None:
            sums = tuple((source.rank, source.sums) for source in request.sources.values())
            request.checking = self.start(do.Check(request.key, sums))

    def _done(self, event: on.JobDone) -> None:
        request = self.placed(event.job, well=True)
        if request is not None:
            self._look(request)
            self._release(request)
            return
        request = next((r for r in self.requests.values() if r.checking == event.job), None)
        if request is None:
            return
        request.checking = None
        if event.fault:
            self._fail(request, Failure("PD4040", f"room {request.room}: {event.fault}", "prefill"))
        elif request.open:
            self._confirm(request)
        self._release(request)

    def _broke(self, event: on.JobBroke) -> None:
        request = self.placed(event.job, well=False)
        if request is None:
            request = next((r for r in self.requests.values() if r.checking == event.job), None)
        if request is not None:
            if request.checking == event.job:
                request.checking = None
            self._fail(request, event.failure)
            self._release(request)

    def _confirm(self, request: Request) -> None:
        for source in request.sources.values():
            self.do(do.SendMessage(source.peer, say.Confirm(*request.key)))
        request.state = "confirmed"
        self._close(request, None)
        self.do(do.Count(request.key))
        self.do(do.End(request.handle, None), do.Release(request.handle), do.Forget(request.key))
        del self.requests[request.key]

    def _fail(self, request: Request, failure: Failure) -> None:
        if not request.open:
            return
        request.state, request.failure = "failed", failure
        self._close(request, failure)
        self.do(do.End(request.handle, failure))
        self.drop(request)
        for source in request.sources.values():
            if source.asked:
                self._tell_failed(source.peer, request.key, failure)
            else:
                self._decline(request, source.peer)
        for target in request.next:
            self.do(do.Want(target.peer, target.address))
            self._decline(request, target.peer)
        if request.seeking and not request.sources:  # whoever serves it may still be found out
            self.do(do.Arm(("seek", request.key), self.now + self._options.bootstrap_s))
        else:
            request.seeking = False
            self.do(do.Unfind(request.key))
        if not request.released:
            self.do(do.Arm(("remind", request.key), self.now + REMIND_S))
        self._release(request)

    def _close(self, request: Request, failure: Failure | None) -> None:
        self._over.put(request.key, failure, self.now)
        self._handles.pop(request.handle, None)
        self.do(do.Cancel(("room", request.handle)), do.Cancel(("seek", request.key)))
        if self._rooms.get(request.room) is request:
            del self._rooms[request.room]

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

    def _fired(self, timer: on.Timer) -> None:
        match timer:
            case ("room", handle):
                request = self._handles.get(handle)
                if request is not None:
                    links = (self._broken.get(s.peer) for s in request.sources.values() if not s.ready)
                    link = next((failure for failure in links if failure is not None), None)
                    self._fail(request, request.overdue(self._options, link, self._registry(request.registry)))
            case ("seek", key):
                request = self.requests.get(key)
                if request is not None and request.open:
                    if not request.all_ready and not request.seeking:
                        self._seek(request)
                elif request is not None:
                    self._seek_no_more(request)
            case ("remind", key):
                request = self.requests.get(key)
                if request is not None and (request.failure is not None or request.leaving):
                    for source in [*request.sources.values(), *request.leaving]:
                        self._ask(request, source)
                    self.do(do.Arm(timer, self.now + REMIND_S))
            case ("peer", peer):
                failure = self._broken.get(peer)
                if failure is not None:
                    self._fail_asked(peer, failure)

    def _fail_asked(self, peer: Peer, failure: Failure) -> None:
        """It did not come back in time. Who had not asked it may still wait."""
        for request in self._waiting_for(peer):
            source = request.source_of(peer)
            if source is not None and source.asked:
                self._fail(request, failure)

    def _tell_failed(self, peer: Peer, key: Key, failure: Failure) -> None:
        self.do(do.SendMessage(peer, say.Failed(*key, failure.code, failure.cause, failure.side)))

    def _decline(self, request: Request, peer: Peer) -> None:
        failure = request.failure
        assert failure is not None
        self.do(do.SendMessage(peer, say.Decline(request.room, failure.code, failure.cause, failure.side)))

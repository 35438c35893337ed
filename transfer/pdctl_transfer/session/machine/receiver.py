"""The receiving side as a state machine: the requests of one decode rank, and the prefill ranks that write them.

A request looks up its *sources*, asks each, and is confirmed when all of them are done and what landed was looked at.
Whatever ends it otherwise, its buffers stay quarantined until each source has said that nothing more will land, or its
process is shown to have ended. A connection that ends changes nothing by itself: the request asks again on the next.
"""

from collections.abc import Callable

from pdctl_transfer.plan import RankId
from pdctl_transfer.session.failure import Failure, State
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.events import Key, Peer
from pdctl_transfer.session.machine.linking import Linking
from pdctl_transfer.session.machine.recent import Recent
from pdctl_transfer.session.machine.request import Request, Source
from pdctl_transfer.session.machine.seeking import REMIND_S
from pdctl_transfer.session.machine.settling import REMEMBER_S
from pdctl_transfer.session.options import Options
from pdctl_transfer.session.wire import messages as say


class Receiver(Linking):
    """See the module.

    slots: of the staging area. chunks: how many staged chunks a source of a request has, once it was asked: in all, or
    in an installment; or why that cannot be one.
    registry: why a registry does not answer; None where it does.
    """

    def __init__(
        self,
        options: Options,
        slots: int,
        chunks: Callable[[Key, RankId, say.More | None], int | Failure],
        registry: Callable[[tuple[str, int]], Failure | None],
    ) -> None:
        super().__init__(options, slots)
        self._chunks, self._registry = chunks, registry
        self._handles: dict[int, Request] = {}
        self._over: Recent[Key, Failure | None] = Recent(REMEMBER_S)
        """Requests that ended, for prefill ranks that speak of them late."""
        self._checking: dict[int, Request] = {}
        """By the jobs that look at what landed."""
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

    def _opened(self, event: on.Opened) -> None:
        key = (event.room, event.attempt)
        twice = Failure("PD4023", f"room {event.room} is open already", "decode") if event.room in self._rooms else None
        refusal = self._closing or twice
        if refusal is not None:
            self.do(do.End(event.handle, refusal), do.Release(event.handle), do.Forget(key))
            return
        request = Request(event.handle, key, event.registry)
        self._rooms[event.room] = self.requests[key] = self._handles[event.handle] = request
        self.do(do.Arm(("room", event.handle), self.now + self._options.bootstrap_s))
        self._seek(request)
        if event.fault is not None:  # whoever serves it is told, and asked for nothing
            self._fail(request, event.fault)

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
            case _ if request.failure is not None:
                self._tell_failed(peer, key, request.failure)
            case _ if source.asked and source not in request.leaving:
                self._progress(request, source, message)

    def _progress(self, request: Request, source: Source, message: say.AnyMessage) -> None:
        match message:
            case say.Ready():
                source.ready = True
                if request.all_ready and request.state == "bootstrapping":
                    self._enter(request, "waiting", self._options.waiting_s)
            case say.Start(more=more):
                if not source.started:
                    source.started = source.ready = True
                    if not more:
                        self._lend(request, source, None)
                    if request.open and request.state != "transferring":
                        self._enter(request, "transferring", self._transfer_s(request))
            case say.More(number=number, last=last):
                if number == source.installments and not source.last:
                    source.installments, source.last = number + 1, last
                    self._lend(request, source, message)
                    if request.state == "transferring":
                        self.do(do.Arm(("room", request.handle), self.now + self._transfer_s(request)))
            case say.Landed(chunk=chunk):
                self.landed(request, source, chunk)
            case say.Done(metadata=metadata, sums=sums):
                self._progress(request, source, say.Start(*request.key, source.installments > 0))
                if request.open and not source.done and (source.last or not source.installments):
                    source.done, source.settled, source.sums = True, True, sums
                    self.do(do.Deliver(request.handle, metadata))
                    self._look(request)

    def _lend(self, request: Request, source: Source, more: say.More | None) -> None:
        chunks = self._chunks(request.key, source.rank, more)
        if isinstance(chunks, Failure):
            self._fail(request, chunks)
        else:
            self.order(request, source, chunks)

    def _transfer_s(self, request: Request) -> float:
        """A little longer than prefill waits, which knows causes."""
        more = self._options.waiting_s if request.expects_more else 0.0
        return self._options.transfer_s + self._options.linger_s + more

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
            self._checking[request.checking] = request

    def _done(self, event: on.JobDone) -> None:
        request = self.placed(event.job, well=True)
        if request is not None:
            self._look(request)
            self._release(request)
            return
        request = self._checking.pop(event.job, None)
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
            request = self._checking.pop(event.job, None)
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

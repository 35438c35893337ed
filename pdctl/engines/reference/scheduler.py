"""The thread that owns an engine: admits requests, moves each on by one step in turn, polls transfers, ends requests.

Other threads only submit and abort. Whatever happens to a request, `notify` is called once with it `finished`.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.request import Failure, Request
from pdctl.engines.reference.side import Link

#: How often to see whether quarantined places have become safe, while nothing else happens.
SWEEP_SECONDS = 0.05
STOPPING = Failure("PD3056", "the engine is shutting down", 503)


@dataclass
class Counts:
    """What the engine has done since it started; read by the metrics, written by the scheduler's thread."""

    prompt_tokens_computed: int = 0
    prompt_tokens_cached: int = 0
    generated_tokens: int = 0
    draft_accepted: int = 0
    draft_verified: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


class Scheduler:
    """Runs requests on an engine; `link` is None for an aggregate one."""

    def __init__(self, engine: Engine, link: Link | None = None) -> None:
        self.engine = engine
        self.counts = Counts()
        self.link = link
        self._role = engine.options.role
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._closing = False
        self._nudged = False
        self._thread = threading.Thread(target=self._run, name="reference-scheduler", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End every request with a failure, and take no more; does not wait."""
        self._post(self._shut)

    def close(self) -> None:
        """Stop, wait for the thread, then leave the pair."""
        self.stop()
        self._thread.join()
        if self.link:
            self.link.close()

    def submit(self, request: Request) -> None:
        """Queue a request; its `notify` tells the rest."""
        if not self._post(lambda: self._arrive(request)):
            self._fail(request, STOPPING)

    def abort(self, rid: str, reason: str) -> None:
        """End a request that is no longer wanted; unknown ids are ignored, it may just have ended."""
        self._post(lambda: self._abort(rid, reason))

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def loads(self) -> tuple[int, int]:
        """Requests running and waiting."""
        return len(self._running), len(self._waiting)

    def _post(self, action: Callable[[], None]) -> bool:
        """Have the thread do something; False if it no longer does anything."""
        with self._wake:
            if self._closing:
                return False
            self._inbox.append(action)
            self._wake.notify()
            return True

    def _nudge(self) -> None:
        with self._wake:
            self._nudged = True
            self._wake.notify()

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            # Also where a defect ended the loop: nobody is left waiting, and `/health` says that the thread is gone.
            self._shut()
            self._drain()

    def _loop(self) -> None:
        while not self._closing:
            self._drain()
            self._admit()
            computed = [self._advance(request) for request in list(self._running)]
            self._running = [request for request in self._running if not request.ended]
            if not any(computed):
                self._idle()

    def _idle(self) -> None:
        with self._wake:
            if not self._inbox and not self._nudged and not self._closing:
                self._wake.wait(SWEEP_SECONDS if self._waiting or self._quarantined else None)
            self._nudged = False

    @property
    def _quarantined(self) -> bool:
        for group in self.engine.groups:
            group.allocator.sweep()
        return any(group.allocator.quarantined_pages for group in self.engine.groups)

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _arrive(self, request: Request) -> None:
        fault = self.engine.fits(len(request.prompt), request.sampling.max_new_tokens)
        refusal = STOPPING if self._closing else fault
        if refusal:
            self._fail(request, refusal)
            return
        request.group = self._choose_group(request)
        self._waiting.append(request)

    def _choose_group(self, request: Request) -> int:
        """A room's group follows from its number, so that decode knows which ranks to ask."""
        if request.bootstrap:
            return request.bootstrap.room % len(self.engine.groups)
        used = Counter(other.group for other in (*self._running, *self._waiting))
        return min(range(len(self.engine.groups)), key=lambda group: used[group])

    def _admit(self) -> None:
        while self._waiting and self.engine.place(self._waiting[0]):
            request = self._waiting.popleft()
            self._running.append(request)
            request.phase = "prefilling"
            if self.link:
                self._guarded(request, self._open)

    def _open(self, request: Request) -> None:
        if self.link is None:
            raise RuntimeError("an aggregate engine has no link")
        request.transfer = self.link.open(request, self._nudge)
        if self._role == "decode":
            request.phase = "receiving"

    def _advance(self, request: Request) -> bool:
        """Move a request on by one step; whether anything was computed."""
        if request.ended:
            return False
        step = {
            "prefilling": self._prefill,
            "sending": self._await_confirmation,
            "receiving": self._await_state,
            "decoding": self._decode,
        }[request.phase]
        self._guarded(request, step)
        return request.phase in ("prefilling", "decoding")

    def _guarded(self, request: Request, step: Callable[[Request], None]) -> None:
        """A transfer that fails ends its request with the transfer's own code, on this side as on the other."""
        from pdctl_transfer.errors import TransferError

        try:
            step(request)
        except TransferError as error:
            self._fail(request, Failure(error.code, error.message))

    def _prefill(self, request: Request) -> None:
        before = request.computed
        self.engine.prefill(request)
        self.counts.prompt_tokens_computed += request.computed - before
        if request.failure:
            self._fail(request, request.failure)
        elif request.output:
            self._first_token(request)

    def _first_token(self, request: Request) -> None:
        self.counts.generated_tokens += 1
        self.counts.prompt_tokens_cached += request.cached
        if self._role == "prefill":
            request.phase = "sending"
            request.transfer.send(request)
        else:
            self._tell(request)

    def _await_confirmation(self, request: Request) -> None:
        if request.transfer.settled():
            request.finish = request.finish or {"type": "length", "length": len(request.output)}
            self._end(request)

    def _await_state(self, request: Request) -> None:
        if request.transfer.settled():
            request.transfer.receive(request)
            request.done = len(request.prompt)
            self._tell(request)

    def _decode(self, request: Request) -> None:
        before = len(request.output), request.accepted, request.verified
        self.engine.decode(request)
        self.counts.generated_tokens += len(request.output) - before[0]
        self.counts.draft_accepted += request.accepted - before[1]
        self.counts.draft_verified += request.verified - before[2]
        if request.failure:
            self._fail(request, request.failure)
        else:
            self._tell(request)

    def _tell(self, request: Request) -> None:
        if request.finish:
            self._end(request)
        else:
            request.phase = "decoding"
            request.notify(request)

    def _abort(self, rid: str, reason: str) -> None:
        for request in (*self._waiting, *self._running):
            if request.rid == rid and not request.ended:
                self._fail(request, Failure("PD3052", reason, 499))
        self._waiting = deque(request for request in self._waiting if not request.ended)

    def _shut(self) -> None:
        with self._wake:
            self._closing = True
        for request in (*self._waiting, *self._running):
            if not request.ended:
                self._fail(request, STOPPING)

    def _fail(self, request: Request, failure: Failure) -> None:
        request.failure = failure
        request.finish = {
            "type": "abort",
            "message": f"{failure.code} {failure.message}",
            "status_code": failure.status,
        }
        self.counts.failed[failure.code] += 1
        if request.transfer:
            request.transfer.abort(failure.message)
        elif self.link and request.bootstrap:
            self.link.refuse(request, failure.message)
        self._end(request)

    def _end(self, request: Request) -> None:
        request.phase = "finished"
        if request.place:
            allocator = self.engine.groups[request.group].allocator
            allocator.give(request.place, request.transfer.reusable if request.transfer else lambda: True)
            request.place = None
        self.counts.ended["failed" if request.failure else "ok"] += 1
        request.notify(request)

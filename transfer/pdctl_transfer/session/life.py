"""The life of a request at one side, and the handle by which an engine follows it.

bootstrapping (the two sides find each other) → waiting (both know the request) → transferring (bytes move) →
confirmed | withdrawn | failed. It only moves forward, the first end is the end, what comes late changes nothing.
"""

import threading
import time
from collections.abc import Callable

from pdctl_transfer.session.failure import ENDS, ORDER, WITHDRAWN, Failure, Side, State


class Life:
    """State, failure and quarantine of one request. Moved by one loop thread, read by any."""

    def __init__(self) -> None:
        self.state: State = "bootstrapping"
        self.failure: Failure | None = None
        self.reached: dict[str, float] = {"bootstrapping": time.monotonic()}
        """Monotonic time at which each state was entered."""
        self._settled = False
        self._ended = threading.Event()
        self._free = threading.Event()
        self._watchers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def advance(self, state: State) -> bool:
        """Move forward; False, and nothing happens, where the request is there already, further, or over."""
        if self.state in ENDS or ORDER.index(state) <= ORDER.index(self.state):
            return False
        self.state = state
        self.reached[state] = time.monotonic()
        if state in ENDS:
            self._end()
        return True

    def fail(self, failure: Failure) -> bool:
        """End it with its first cause; False where it has ended before."""
        if self.state in ENDS:
            return False
        self.failure = failure
        self.state = "withdrawn" if failure.code == WITHDRAWN else "failed"
        self.reached[self.state] = time.monotonic()
        self._end()
        return True

    def settle(self) -> None:
        """Nothing of it is under way any more: with its end, its buffers may be used again."""
        self._settled = True
        if self.state in ENDS:
            self._free.set()

    @property
    def reusable(self) -> bool:
        """Whether its pages, slots and rows may be used again: it has ended, and nothing can land late."""
        return self._free.is_set()

    def wait(self, timeout: float | None) -> bool:
        """Block until the end; False where the time ran out first."""
        return self._ended.wait(timeout)

    def wait_reusable(self, timeout: float | None) -> bool:
        """Block until the buffers may be used again; False where the time ran out first."""
        return self._free.wait(timeout)

    def when_over(self, function: Callable[[], None]) -> None:
        """Call it once the request has ended, at once where it has. It runs on the loop thread: keep it short."""
        with self._lock:
            if not self._ended.is_set():
                self._watchers.append(function)
                return
        function()

    def _end(self) -> None:
        if self._settled:
            self._free.set()
        with self._lock:
            self._ended.set()
            watchers, self._watchers = self._watchers, []
        for function in watchers:
            function()


class Handle:
    """What both handles share. An engine polls `state`, or waits."""

    def __init__(self, room: int, abort: Callable[[Failure], object], side: Side) -> None:
        self.room = room
        self.life = Life()
        """Moved by the peer's loop thread."""
        self._abort = abort
        self._side: Side = side

    @property
    def state(self) -> State:
        """bootstrapping, waiting, transferring, confirmed, withdrawn or failed."""
        return self.life.state

    @property
    def failure(self) -> Failure | None:
        """Code, cause and side once failed or withdrawn; None otherwise."""
        return self.life.failure

    @property
    def reusable(self) -> bool:
        """False while the buffers of this request may still be read or written by the fabric: quarantine."""
        return self.life.reusable

    def wait(self, timeout: float | None = None) -> State:
        """Block until confirmed, withdrawn or failed, or until the time ran out; returns the state then."""
        self.life.wait(timeout)
        return self.life.state

    def wait_reusable(self, timeout: float | None = None) -> bool:
        """Block until `reusable`; False where the time ran out first."""
        return self.life.wait_reusable(timeout)

    def when_over(self, function: Callable[[], None]) -> None:
        """Call `function` once when the request has ended; it runs on the peer's loop thread and must be short."""
        self.life.when_over(function)

    def withdraw(self, reason: str) -> None:
        """The transfer is not needed: it ends on both sides, as no failure (PD4035). Harmless once it has ended. Does
        not wait; the buffers are free once `reusable`."""
        self._abort(Failure(WITHDRAWN, f"not needed by the {self._side} engine: {reason}", self._side))

    def abort(self, reason: str) -> None:
        """Give the request up on both sides (PD4033). Harmless once it has ended. Does not wait."""
        self._abort(Failure("PD4033", f"aborted by the {self._side} engine: {reason}", self._side))

"""The driver of a machine: its loop, its workers, its timers and its handles. It decides nothing.

Whatever happens, on whichever thread, becomes an event on the loop thread; the machine says what is to be done, and the
driver does it. All state is the loop thread's, so there are no locks; engines' threads and workers come in by `post`.
"""

import threading
import time
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from msgspec.structs import replace

from pdctl_transfer.session.drive import pulse
from pdctl_transfer.session.drive.jobs import Jobs
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.drive.workers import Workers
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.identity import Identity
from pdctl_transfer.session.life import Handle
from pdctl_transfer.session.machine import actions as do
from pdctl_transfer.session.machine import events as on
from pdctl_transfer.session.machine.receiver import Receiver
from pdctl_transfer.session.machine.sender import Sender
from pdctl_transfer.telemetry import Telemetry

LATE_S: Final = 0.5
"""A timer that fires so much too late, after a stall of this process, lets what came meanwhile be read first."""
GRACE_S: Final = 0.25


class Driver:
    """What both sides share. A side gives its machine, and does the actions that are its own in `act`."""

    def __init__(self, me: Identity, telemetry: Telemetry, workers: int) -> None:
        self.me = replace(me, pulse=pulse.pulse(me.options.host))
        self.options, self.telemetry = me.options, telemetry
        self.machine: Sender | Receiver
        self.loop = Loop(f"pdctl-{me.side}-{me.rank}")
        self.workers = Workers(f"pdctl-work-{me.side}-{me.rank}", workers)
        self.jobs = Jobs(self.workers, me.side, self.post, self.tell)
        self.handles: dict[int, Handle] = {}
        self._numbers = count(1)
        self._timers: dict[on.Timer, TimerHandle] = {}
        self._events: deque[on.AnyEvent] = deque()
        self._taking = False
        self._closing = False
        self._gone = Failure("PD4034", f"the {me.side} engine closed", me.side)
        self._left = threading.Event()
        telemetry.gauge("stalled_seconds", "Seconds in which this process kept the core from running", self._stalled)
        self.loop.call(self._beat)

    def _stalled(self) -> float:
        return self.loop.stalled_s

    # Events and actions.

    def post(self, event: on.AnyEvent) -> bool:
        """Let something happen; from any thread. False once this is over."""
        return self.loop.call(self.tell, event)

    def tell(self, event: on.AnyEvent) -> None:
        """Let something happen; on the loop thread. What follows from it is done before this returns, but where it
        comes up while something else is being done."""
        self._events.append(event)
        if self._taking:
            return
        self._taking = True
        try:
            while self._events:
                actions = self.machine.handle(self._events.popleft())
                for action in actions:  # first, so that who waits for an end finds the buffers free if they are
                    if isinstance(action, do.Release):
                        self.handles[action.handle].life.settle()
                for action in actions:
                    self._do(action)
        finally:
            self._taking = False
        if self._closing and self.machine.idle and not self._left.is_set():
            self._leave()

    def _do(self, action: do.AnyAction) -> None:
        match action:
            case do.Arm(timer=timer, at=at):
                self._cancel(timer)
                self._timers[timer] = self.loop.later(max(0.0, at - time.monotonic()), self._fired, timer, at)
            case do.Cancel(timer=timer):
                self._cancel(timer)
            case do.Advance(handle=handle, state=state):
                self.handles[handle].life.advance(state)
            case do.End(handle=handle, failure=failure):
                self._end(self.handles[handle], failure)
            case do.Release(handle=handle):
                del self.handles[handle]
            case do.AbandonJob(job=job):
                self.jobs.abandon(job)
                self.wake()
            case _:
                self.act(action)

    def act(self, action: do.AnyAction) -> None:
        """Do what only one side does."""
        raise NotImplementedError

    def wake(self) -> None:
        """Let jobs that wait for something see that they were abandoned."""

    def _cancel(self, timer: on.Timer) -> None:
        armed = self._timers.pop(timer, None)
        if armed is not None:
            armed.cancel()

    def _fired(self, timer: on.Timer, due: float) -> None:
        now = time.monotonic()
        if now - due > LATE_S:
            self._timers[timer] = self.loop.later(GRACE_S, self._fired, timer, now + GRACE_S)
            return
        self._timers.pop(timer, None)
        self.tell(on.TimerFired(now, timer))

    def _end(self, handle: Handle, failure: Failure | None) -> None:
        """The machine says it once; buffers may be free already, or become so."""
        if failure is None:
            handle.life.advance("confirmed")
            self.telemetry.ended(handle.room, "", "", "", handle.life.reached)
        else:
            handle.life.fail(failure)
            self.telemetry.ended(handle.room, failure.code, failure.side, failure.cause, handle.life.reached)

    def _beat(self) -> None:
        self.workers.relieve()
        pulse.drain()
        self.loop.later(self.options.heartbeat_s, self._beat)

    # The engine's calls, from any thread.

    def adopt(self, handle: Handle) -> int:
        """A number by which the machine knows a handle."""
        number = next(self._numbers)
        self.handles[number] = handle
        return number

    def begin(self, number: int, opened: Callable[..., object], *args: object) -> None:
        """Let a handle's request begin, by `opened(number, ...)` on the loop thread. It ends at once where that has."""
        if not self.loop.call(opened, number, *args):
            life = self.handles.pop(number).life
            life.settle()
            life.fail(self._gone)

    def abort(self, number: int, failure: Failure) -> None:
        """`Handle.abort`."""
        self.post(on.Aborted(time.monotonic(), number, failure))

    def close(self, drain_s: float) -> bool:
        """End what is open (PD4034), and wait until nothing more can be written or read. Whether that is so.

        Where it is not, this side stays, without taking anything new, until it is; ask again.
        """
        if not self._left.is_set():
            self.loop.call(self._begin_to_leave)
            self._left.wait(drain_s)
        if self._left.is_set() and not self.loop.inside:
            self.workers.close(1.0)
            self.loop.stop()
        return self._left.is_set()

    def _begin_to_leave(self) -> None:
        if not self._closing:
            self._closing = True
            self.retire()
            self.tell(on.Closing(time.monotonic(), self._gone))

    def _leave(self) -> None:
        """All is settled: end the connections in order, and the threads."""
        self._left.set()
        for timer in list(self._timers):
            self._cancel(timer)
        self.leave()
        self.loop.soon(self.loop.stop)
        self.workers.close(0.0)

    def retire(self) -> None:
        """Let nobody find this side any more."""

    def leave(self) -> None:
        """End connections, and what is shared with others."""

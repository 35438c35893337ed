"""Threads for what blocks: fabric writes, copies, proofs.

A fabric call cannot be interrupted (a frozen peer holds one for half a minute). So jobs for one peer, a *lane*, hold no
more than so many threads; a job that overstays no longer counts, and another thread takes its place; one that is not
wanted any more is abandoned. Threads are daemons, an interpreter can exit over them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

Job = Callable[[], object]

NO_LANES: Final[Mapping[str, int]] = {}
OVERSTAY_S: Final = 1.0


class _Task(NamedTuple):
    job: Job
    lanes: Mapping[str, int]


class _Run(NamedTuple):
    task: _Task
    since: float


class Workers:
    """Runs jobs on at most `limit` threads, those that overstay apart: in order of submission, but for jobs whose lane
    is full. Threads start on demand.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._queue: deque[_Task] = deque()
        self._ready = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._running: dict[threading.Thread, _Run] = {}
        self._lanes: dict[str, int] = {}
        self._dropped: set[threading.Thread] = set()
        """Threads whose job was abandoned: they end when it returns."""
        self._idle = 0
        self._serial = 0
        self._closed = False

    def submit(self, job: Job, lanes: Mapping[str, int] = NO_LANES) -> bool:
        """Queue a job; False, and nothing happens, once closed. `lanes`: how many of each may run at once."""
        with self._ready:
            if self._closed:
                return False
            self._queue.append(_Task(job, lanes))
            self._staff()
            self._ready.notify()
        return True

    def abandon(self, job: Job) -> bool:
        """True where it was still queued: it will never run. Else its thread does not count any more."""
        with self._ready:
            for task in self._queue:
                if task.job == job:
                    self._queue.remove(task)
                    return True
            for thread, run in self._running.items():
                if run.task.job == job and thread not in self._dropped:
                    self._dropped.add(thread)
                    self._leave(run.task)
                    self._staff()
                    self._ready.notify()
        return False

    def relieve(self) -> None:
        """Replace threads whose jobs have overstayed. To be called now and then."""
        with self._ready:
            self._staff()

    def close(self, timeout: float) -> None:
        """Drop queued jobs, wait for running ones up to `timeout` seconds in all."""
        end = time.monotonic() + timeout
        with self._ready:
            self._closed = True
            self._queue.clear()
            self._ready.notify_all()
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _staff(self) -> None:
        """Start a thread where one more could work. The lock is held."""
        now = time.monotonic()
        counted = self._idle + sum(
            now - run.since < OVERSTAY_S for thread, run in self._running.items() if thread not in self._dropped
        )
        able = sum(self._fits(task) for task in self._queue)
        if able > self._idle and counted < self._limit and not self._closed:
            self._serial += 1
            thread = threading.Thread(target=self._run, name=f"{self._name}-{self._serial}", daemon=True)
            self._threads.add(thread)
            self._idle += 1  # until it takes its first job
            thread.start()

    def _fits(self, task: _Task) -> bool:
        return all(self._lanes.get(lane, 0) < most for lane, most in task.lanes.items())

    def _next(self) -> _Task | None:
        task = next((task for task in self._queue if self._fits(task)), None)
        if task is not None:
            self._queue.remove(task)
            for lane in task.lanes:
                self._lanes[lane] = self._lanes.get(lane, 0) + 1
        return task

    def _leave(self, task: _Task) -> None:
        for lane in task.lanes:
            self._lanes[lane] -= 1
            if not self._lanes[lane]:
                del self._lanes[lane]

    def _take(self, me: threading.Thread) -> _Task | None:
        """The next job for a thread that is idle; None where it should end."""
        with self._ready:
            while (task := self._next()) is None and not self._closed:
                self._ready.wait()
            self._idle -= 1
            if task is not None:
                self._running[me] = _Run(task, time.monotonic())
            return task

    def _done(self, me: threading.Thread, task: _Task, *, well: bool) -> bool:
        """A job has returned; whether the thread goes on: those that were replaced, and surplus ones, end. One whose
        job raised dies."""
        with self._ready:
            del self._running[me]
            if me in self._dropped:
                self._dropped.discard(me)
                self._threads.discard(me)
                return False
            self._leave(task)
            if not well or self._idle + len(self._running) - len(self._dropped) >= self._limit:
                self._threads.discard(me)
                self._staff()
                self._ready.notify()
                return False
            self._idle += 1
            return True

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            task = self._take(me)
            if task is None:
                break
            try:
                task.job()
            except BaseException:
                self._done(me, task, well=False)
                raise
            go_on = self._done(me, task, well=True)
            del task  # or it, and all that it holds, would live until the next one
            if not go_on:
                return
        with self._ready:
            self._threads.discard(me)

"""Threads for what blocks: fabric writes and scatters.

A fabric call cannot be interrupted (a frozen peer holds one for half a minute). So a job that overstays is abandoned:
its thread no longer counts and ends when the call returns. Threads are daemons, an interpreter can exit over them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from weakref import WeakSet

Job = Callable[[], None]


class Workers:
    """Runs jobs in order of submission on at most `limit` threads, abandoned ones apart. Threads start on demand."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: deque[Job] = deque()
        self._ready = threading.Condition()
        self._counted: set[threading.Thread] = set()
        self._idle = 0
        self._serial = 0
        self._closed = False
        self._running: dict[threading.Thread, Job] = {}
        self._never: WeakSet[Job] = WeakSet()

    def submit(self, job: Job) -> None:
        """Queue a job. Dropped once closed."""
        with self._ready:
            if self._closed:
                return
            self._jobs.append(job)
            if self._idle < len(self._jobs) and len(self._counted) < self._limit:
                self._start()
            self._ready.notify()

    def abandon(self, job: Job) -> bool:
        """Stop counting the thread that runs this job. True where it was still queued: it will never run. Asking again
        changes nothing.
        """
        with self._ready:
            if job in self._jobs:
                self._jobs.remove(job)
                self._never.add(job)
            if job in self._never:
                return True
            for thread, running in self._running.items():
                if running is job and thread in self._counted:
                    self._counted.discard(thread)
                    if self._jobs:
                        self._start()
                    break
        return False

    def close(self, timeout: float) -> None:
        """Drop queued jobs, wait for running ones up to `timeout` seconds in all."""
        end = time.monotonic() + timeout
        with self._ready:
            self._closed = True
            self._jobs.clear()
            self._ready.notify_all()
            threads = list(self._counted)
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _start(self) -> None:
        self._serial += 1
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._serial}", daemon=True)
        self._counted.add(thread)
        thread.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._ready:
                self._idle += 1
                while not self._jobs and not self._closed and me in self._counted:
                    self._ready.wait()
                self._idle -= 1
                if not self._jobs or me not in self._counted:
                    self._counted.discard(me)
                    return
                job = self._jobs.popleft()
                self._running[me] = job
            done = False
            try:
                job()
                done = True
            finally:
                with self._ready:
                    self._running.pop(me, None)
                    if not done:  # the thread dies of a defect: make room for its successor
                        self._counted.discard(me)
                        if self._jobs and not self._closed:
                            self._start()

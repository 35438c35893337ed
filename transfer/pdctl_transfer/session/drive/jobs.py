"""Work on threads, and its one error edge: what a job raises becomes an event with a code, and every job is answered.

A job that raises a TransferError broke for a reason that somebody foresaw, and keeps its code. Anything else is a
defect of the core (PD4042): it is logged once with its trace, fails what the job served, and nothing else.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Deadline
from pdctl_transfer.session.drive.workers import Workers
from pdctl_transfer.session.failure import Failure, Side
from pdctl_transfer.session.machine.events import AnyEvent, JobBroke, JobDone, Key, Result

DEFECT = "PD4042"
log = logging.getLogger("pdctl_transfer")

Answer = TypeVar("Answer")

Body = Callable[["Job"], tuple[Result, ...] | str]
"""What a job does: results a leg (sender), or what is wrong with what landed (receiver). Several bodies of one job are
shares of it."""


class Job:
    """One piece of work. `writing`: writes that were begun and may still be under way. `slots`: scratch that it holds.

    Both are kept by the body as it goes, so that they are true whenever it raises.
    """

    def __init__(self, number: int, legs: Sequence[Key], bodies: Sequence[Body], seconds: float) -> None:
        self.number, self.legs, self.bodies = number, legs, bodies
        self.deadline = Deadline(seconds)
        self.writing = 0
        self.slots: list[int] = []
        self.runs: list[Callable[[], None]] = []
        self.left = len(bodies)
        self.answer: AnyEvent | None = None
        self.lock = threading.Lock()


class Jobs:
    """The jobs of one machine that have not been answered. `side`: whose they are, and who is to blame for a defect.
    `post` brings an answer to the loop thread, `tell` is for one that is given there."""

    def __init__(
        self, workers: Workers, side: Side, post: Callable[[AnyEvent], object], tell: Callable[[AnyEvent], object]
    ) -> None:
        self._workers, self._side, self._post, self._tell = workers, side, post, tell
        self._jobs: dict[int, Job] = {}

    def start(
        self,
        number: int,
        bodies: Sequence[Body],
        legs: Sequence[Key] = (),
        *,
        lanes: Mapping[str, int],
        seconds: float,
    ) -> None:
        """Have it done. From the loop thread."""
        job = self._jobs[number] = Job(number, legs, bodies, seconds)
        for body in bodies:
            run = self._run_of(job, body)
            job.runs.append(run)
            if not self._workers.submit(run, lanes):
                self._share_over(job, self._never(job))

    def run(self, number: int, body: Body) -> None:
        """Do it here and now, for what takes less than a hand-over. It is answered like any other."""
        self._tell(self._attempt(Job(number, (), [body], 0.0), body))

    def abandon(self, number: int) -> None:
        """Let it end soon, or never begin; it is answered all the same. From the loop thread."""
        job = self._jobs.get(number)
        if job is None:
            return
        job.deadline.cancel()
        for run in job.runs:
            if self._workers.abandon(run):
                self._share_over(job, self._never(job))

    def _run_of(self, job: Job, body: Body) -> Callable[[], None]:
        def run() -> None:
            self._share_over(job, self._attempt(job, body))

        return run

    def _attempt(self, job: Job, body: Body) -> AnyEvent:
        answer = answered(self._side, partial(body, job))
        if isinstance(answer, Failure):
            return JobBroke(time.monotonic(), job.number, answer, settled=job.writing == 0, held=tuple(job.slots))
        if isinstance(answer, str):
            return JobDone(time.monotonic(), job.number, fault=answer)
        return JobDone(time.monotonic(), job.number, results=answer)

    def _never(self, job: Job) -> JobDone:
        results = tuple(Result(leg, ok=False) for leg in job.legs)
        return JobDone(time.monotonic(), job.number, results=results)

    def _share_over(self, job: Job, answer: AnyEvent) -> None:
        """The first thing that went wrong is the job's answer; it is given when the last share has ended."""
        with job.lock:
            job.left -= 1
            if job.answer is None or (isinstance(answer, JobBroke) and not isinstance(job.answer, JobBroke)):
                job.answer = answer
            last = job.left == 0
        if last:
            self._jobs.pop(job.number, None)
            self._post(job.answer)


def answered(side: Side, work: Callable[[], Answer]) -> Answer | Failure:
    """What comes of this work, or why nothing does. Also for what a machine asks on the loop thread."""
    try:
        return work()
    except TransferError as error:
        return Failure(error.code, error.message, side)
    except Exception as error:
        log.exception("work of the transfer core broke; what it served fails with %s", DEFECT)
        return Failure(DEFECT, f"{type(error).__name__} in the core: {error}", side)

"""What machines share: one event in, a list of actions out."""

from itertools import count

from pdctl_transfer.session.machine.actions import AnyAction, StartJob, Work
from pdctl_transfer.session.machine.events import AnyEvent


class Machine:
    """Handles one event at a time. Deterministic: the same events give the same actions."""

    def __init__(self) -> None:
        self.now = 0.0
        self._out: list[AnyAction] = []
        self._serial = count(1)

    def handle(self, event: AnyEvent) -> list[AnyAction]:
        """What is to be done now that this has happened."""
        self.now = max(self.now, event.now)
        self._take(event)
        out, self._out = self._out, []
        return out

    def do(self, *actions: AnyAction) -> None:
        """Have these done, in this order."""
        self._out += actions

    def start(self, work: Work) -> int:
        """Have this done by a worker; the job's number."""
        job = next(self._serial)
        self.do(StartJob(job, work))
        return job

    def _take(self, event: AnyEvent) -> None:
        raise NotImplementedError

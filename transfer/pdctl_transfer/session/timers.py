"""One deadline at a time for one request, re-armed as its state moves on."""

import asyncio
from collections.abc import Callable

from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.life import Failure


class Timer:
    """Calls `expired` with the failure that says what is missing then. Loop thread only."""

    def __init__(self, loop: Loop, expired: Callable[[Failure], object]) -> None:
        self._loop, self._expired = loop, expired
        self._handle: asyncio.TimerHandle | None = None

    def arm(self, seconds: float, why: Callable[[], Failure]) -> None:
        """Replace the deadline; `why` is asked when it passes."""
        self.stop()
        self._handle = self._loop.later(seconds, lambda: self._expired(why()))

    def stop(self) -> None:
        """No deadline any more."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

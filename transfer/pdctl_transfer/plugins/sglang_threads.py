"""The two threads that a rank of SGLang may need beside its scheduler; each starts with its first use."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.002
"""Between two looks at the requests that are watched: a loop of a scheduler that is idle takes as long."""


class Behind:
    """Calls in their order, on a thread where one has to wait for the device first. They must not raise."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._some = threading.Condition()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], None], *, waits: bool) -> None:
        """After those before. At once where none is left, and this one does not wait."""
        with self._some:
            if waits or self._calls:
                self._calls.append(function)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="pdctl-behind", daemon=True)
                    self._thread.start()
                self._some.notify()
                return
        function()

    def _run(self) -> None:
        while True:
            with self._some:
                while not self._calls:
                    self._some.wait()
                function = self._calls[0]
            function()
            with self._some:
                self._calls.popleft()  # only now: what comes meanwhile goes behind it


class Watch:
    """Looks at requests as long as they go on, where the engine's scheduler does not: on the later pipeline stages of
    prefill, whose statuses the first stage collects. A look must not raise; it says whether there is more to see."""

    def __init__(self) -> None:
        self._looks: list[Callable[[], bool]] = []
        self._some = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, look: Callable[[], bool]) -> None:
        """From now on."""
        with self._some:
            self._looks.append(look)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pdctl-watch", daemon=True)
                self._thread.start()
            self._some.notify()

    def _run(self) -> None:
        while True:
            with self._some:
                while not self._looks:
                    self._some.wait()
                looks = list(self._looks)
            over = {look for look in looks if not look()}
            with self._some:
                self._looks = [look for look in self._looks if look not in over]
            time.sleep(PAUSE_S)

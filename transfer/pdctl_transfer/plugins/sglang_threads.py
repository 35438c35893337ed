"""The two threads that a rank of SGLang may need beside its scheduler; each is there while it has something to do."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

PAUSE_S: Final = 0.002
"""Between two looks at the requests that are watched: a loop of a scheduler that is idle takes as long."""
LINGER_S: Final = 1.0
"""A thread that waits for the device is kept for so long after its last call."""


class Behind:
    """Calls in their order, on a thread where one has to wait for the device first. They must not raise."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()
        self._some = threading.Condition()
        self._runs = False

    def call(self, function: Callable[[], None], *, waits: bool) -> None:
        """After those before. At once where none is left, and this one does not wait."""
        with self._some:
            if waits or self._calls:
                self._calls.append(function)
                if not self._runs:
                    self._runs = True
                    threading.Thread(target=self._run, name="pdctl-behind", daemon=True).start()
                self._some.notify()
                return
        function()

    def _run(self) -> None:
        while True:
            with self._some:
                if not self._some.wait_for(lambda: self._calls, LINGER_S):
                    self._runs = False
                    return
                function = self._calls[0]
            function()
            with self._some:
                self._calls.popleft()  # only now: what comes meanwhile goes behind it


class Watch:
    """Looks at requests as long as they go on, where the engine's scheduler does not: on the later pipeline stages of
    prefill, whose statuses the first stage collects. A look must not raise; it says whether there is more to see."""

    def __init__(self) -> None:
        self._looks: list[Callable[[], bool]] = []
        self._lock = threading.Lock()
        self._runs = False

    def add(self, look: Callable[[], bool]) -> None:
        """From now on."""
        with self._lock:
            self._looks.append(look)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="pdctl-watch", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                looks = list(self._looks)
                if not looks:
                    self._runs = False
                    return
            over = {look for look in looks if not look()}
            with self._lock:
                self._looks = [look for look in self._looks if look not in over]
            time.sleep(PAUSE_S)

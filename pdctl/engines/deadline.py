"""How much of a wait is left, where several steps share one."""

import time


class Deadline:
    """Runs from when it is made."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds that remain, 0 once it is over."""
        return max(0.0, self._ends - time.monotonic())

    def wait(self) -> float:
        """Seconds that one may wait now. Raises TimeoutError once it is over."""
        left = self.left()
        if left <= 0:
            raise TimeoutError
        return left

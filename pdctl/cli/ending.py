"""What `down` does while it does it: which units are still there, and a line for each that is gone."""

import threading
import time
from collections.abc import Sequence
from typing import Any

from pdctl.errors import PdctlError
from pdctl.launch.base import Launcher
from pdctl.launch.state import ROUTER, PhaseEntry

POLL_S = 0.1


def running(launcher: Launcher) -> list[str]:
    """Units that may run, the router first, as they are ended; none where that cannot be told: looking must not keep
    anything from being ended.
    """
    try:
        return sorted((name for name in launcher.known() if _may_run(launcher, name)), key=lambda name: name != ROUTER)
    except (PdctlError, OSError):
        return []


def _may_run(launcher: Launcher, name: str) -> bool:
    try:
        return launcher.status(name).state not in ("absent", "stopped", "failed", "lost")
    except (PdctlError, OSError):
        return True


class Ending:
    """Watches units from beside, for whoever ends them has no time to talk."""

    def __init__(self, launcher: Launcher, names: Sequence[str], watch: Any) -> None:
        self._launcher, self._left, self._watch = launcher, list(names), watch
        self._began = time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Ending":
        if self._left:
            self._watch.phase_began("", "ending " + ", ".join(self._left))
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._say_gone()

    def _look(self) -> None:
        while self._left and not self._done.wait(POLL_S):
            self._say_gone()
            if self._left:
                self._watch.progress("ending " + ", ".join(self._left))

    def _say_gone(self) -> None:
        # from the last to be ended: of two that go while we look, the first must not seem to outlive the second
        gone = {name for name in reversed(self._left) if not _may_run(self._launcher, name)}
        for name in [name for name in self._left if name in gone]:
            self._left.remove(name)
            self._watch.phase_ended(PhaseEntry(name, "done", time.monotonic() - self._began, "ended"))
            if self._left:
                self._watch.phase_began("", "ending " + ", ".join(self._left))

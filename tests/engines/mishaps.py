"""Faults that a test asks for inside running engines, and what must be as before once they are over."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.engines.core_pairs import FIRST_ID, LAST_ID
from tests.engines.fleets import until
from tests.engines.shared import Shared

SLOW_S = 4.0
"""How much longer a write takes, so that a test can come in between."""


def asked(folder: Path, fault: str) -> Path:
    """Ask for a fault; the file is gone once a process has had it."""
    folder.mkdir(exist_ok=True)
    file = folder / fault
    file.touch()
    return file


@contextmanager
def slow_writes(folder: Path, seconds: float = SLOW_S) -> Iterator[Path]:
    """Each write that begins now goes on for so long; the file is there once one does."""
    began = folder / "slowed"
    began.unlink(missing_ok=True)
    asked(folder, "slow").write_text(str(seconds))
    try:
        yield began
    finally:
        (folder / "slow").unlink()


class Size(NamedTuple):
    """What an engine's processes hold, all together."""

    rss: int
    threads: int
    fds: int

    def within(self, before: "Size") -> bool:
        """Whether nothing has grown, but for a few threads of pools and what the heap keeps."""
        return (
            self.threads <= before.threads + 8
            and self.fds <= before.fds + 16
            and self.rss <= before.rss * 1.1 + (64 << 20)
        )


def size_of(engines: Shared, name: str) -> Size:
    """Bytes, threads and descriptors of an engine."""
    processes = engines.processes(name)
    return Size(
        sum(one.memory_info().rss for one in processes),
        sum(one.num_threads() for one in processes),
        sum(one.num_fds() for one in processes),
    )


class Load:
    """Requests over one pair, some of which their client leaves at any moment: before, in or after the transfer."""

    def __init__(self, engines: Shared, pair: tuple[str, str], leaving: float = 0.1) -> None:
        self._engines, self._pair, self._leaving = engines, pair, leaving
        self._rng, self._lock = random.Random(21), threading.Lock()
        self.done, self.left = 0, 0
        self.failed: list[str] = []

    def run(self, seconds: float, clients: int = 4) -> None:
        """So many clients, each with one request after the other."""
        end = time.monotonic() + seconds
        threads = [threading.Thread(target=self._client, args=(end,)) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, end: float) -> None:
        while time.monotonic() < end:
            with self._lock:
                prompt = tuple(self._rng.randrange(FIRST_ID, LAST_ID) for _ in range(self._rng.randrange(3, 700)))
                leaves, after = self._rng.random() < self._leaving, self._rng.random() * 0.6
            if leaves:
                self._engines.leave(*self._pair, prompt, after)
                self.left += 1
                continue
            (answer,) = self._engines.over(*self._pair, [prompt], 8, 1)
            self.done += 1
            if isinstance(answer, str):
                self.failed.append(answer)


def at_rest(engines: Shared, *names: str, timeout: float = 120) -> None:
    """Wait until these engines say that nothing waits, runs or holds memory."""
    for name in names:
        until(f"{name} is at rest", lambda name=name: not any(engines.busy(name).values()), timeout)  # type: ignore[misc]

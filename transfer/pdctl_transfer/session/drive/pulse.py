"""Whether a process lives, by evidence that nothing but its end can give.

A control listener may be closed, a connection may be cut: neither proves that nothing is written any more. So a process
that takes part keeps one more port open, its *pulse*, on which it says nothing, and which only the end of the process
closes. Whoever could reach it once and is now refused knows that the process has ended.
"""

import os
import socket
import threading
from typing import Final

KNOCK_S: Final = 1.0
PULSE: Final = {"pulse": 3}
"""The lane of jobs that knock."""

_pulses: dict[str, socket.socket] = {}
_lock = threading.Lock()


def pulse(host: str) -> int:
    """The port of this process's pulse at this address, opened once; 0 where it cannot be."""
    with _lock:
        if host not in _pulses:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            try:
                made = socket.create_server((host, 0), family=family, backlog=1024)
            except OSError:
                return 0
            made.setblocking(False)
            _pulses[host] = made
        return int(_pulses[host].getsockname()[1])


def drain() -> None:
    """Let go of those who knocked. To be called now and then."""
    for sock in list(_pulses.values()):
        try:
            while True:
                sock.accept()[0].close()
        except OSError:
            pass


def knock(host: str, port: int) -> bool | None:
    """True where the port answers, False where it is refused, None where that cannot be told. Blocks for KNOCK_S."""
    try:
        socket.create_connection((host, port), KNOCK_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


class Vital:
    """What is known of a peer's process."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._reached = False

    def meet(self) -> None:
        """Find out whether its pulse can be reached from here at all. Blocks."""
        self._reached = self._reached or (bool(self.port) and knock(self.host, self.port) is True)

    def ended(self) -> bool:
        """Whether it is shown to have ended. Blocks."""
        return self._reached and knock(self.host, self.port) is False


def _forked() -> None:
    """A child is another process: its parent's pulse must not beat in it, and whoever held the lock is not here."""
    global _lock
    _lock = threading.Lock()
    for sock in _pulses.values():
        sock.close()
    _pulses.clear()


os.register_at_fork(after_in_child=_forked)

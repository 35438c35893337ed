"""Ports: whether one is free, whose it is if not, and a free one that stays free."""

import errno
import random
import socket
from collections.abc import Iterable
from pathlib import Path

from pdctl.errors import GateError

_LOWEST = 20000


class PortBook:
    """Hands out each port once."""

    def __init__(self, taken: Iterable[int] = ()) -> None:
        self._taken = set(taken)
        self._untried = list(range(_LOWEST, max(_ephemeral_start(), _LOWEST + 1000)))
        random.shuffle(self._untried)

    def take(self, port: int, count: int = 1) -> int:
        """Note a port that was given, or so many from it on."""
        self._taken.update(range(port, port + count))
        return port

    def offers(self, port: int) -> bool:
        """Whether the port is one that this book might have chosen, and not one that a file once gave."""
        return _LOWEST <= port < max(_ephemeral_start(), _LOWEST + 1000)

    def free(self, host: str | None, count: int = 1) -> int:
        """A port that nothing listens on, below the range from which the kernel serves outgoing connections.

        One from that range may be gone again before the engine binds it. `count`: so many in a row, the first is
        returned. No host: another one, where nobody looks. Raises GateError (PD3002).
        """
        while self._untried:
            port = self._untried.pop()
            row = range(port, port + count)
            if self._taken.isdisjoint(row) and all(host is None or is_free(host, one) for one in row):
                return self.take(port, count)
        raise GateError(f"no free port from {_LOWEST} up", code="PD3002")


def is_free(host: str, port: int) -> bool:
    """Whether a listener on this address could be opened now. Raises GateError (PD3002) for an address not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            reason = (error.strerror or str(error)).lower()
            raise GateError(f"cannot listen on {host}: {reason}", code="PD3002") from error
    return True


def owner(port: int) -> str | None:
    """Who listens on a port, as far as this user may know: `python (pid 123)`."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return None
    return None


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768

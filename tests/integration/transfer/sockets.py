"""The control connections of this process, and how to break them from outside of the code that owns them.

The core's listeners bind loopback, Mooncake's bind every interface: so a connection to the port of a loopback listener
is one of the core's.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

Break = Literal["reset", "half-close"]
LOOPBACK = "127.0.0.1"
_libc = ctypes.CDLL(None, use_errno=True)


def own_sockets() -> Iterator[socket.socket]:
    """A second descriptor of every IPv4 stream socket of this process; closing it leaves the first as it was."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                if (found.family, found.type) == (socket.AF_INET, socket.SOCK_STREAM):
                    yield found


def control_ports() -> set[int]:
    """Ports on which this process listens on loopback."""
    listening = (one for one in own_sockets() if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return {port for host, port in (one.getsockname() for one in listening) if host == LOOPBACK}


def break_connections(how: Break, ports: Collection[int], limit: int | None = None) -> int:
    """Break this process's ends of connections to or from these ports, `limit` of them or all; returns how many."""
    broken = 0
    for one in own_sockets():
        if broken != limit and _connected(one) and {one.getsockname()[1], one.getpeername()[1]} & set(ports):
            (_reset if how == "reset" else _half_close)(one)
            broken += 1
    return broken


def _connected(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


def _half_close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_WR)


def _reset(one: socket.socket) -> None:
    """What connects to nobody lets go of its connection: the kernel sends RST, and both ends see ECONNRESET."""
    nobody = struct.pack("@H14x", socket.AF_UNSPEC)
    if _libc.connect(one.fileno(), nobody, len(nobody)):
        raise OSError(ctypes.get_errno(), "the connection could not be reset")

"""The control connections of this process, and how to break them from outside of the code that owns them.

The core's listeners bind loopback, Mooncake's bind every interface: so a connection to the port of a loopback listener
is one of the core's.
"""

import ctypes
import os
import random
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

Break = Literal["reset", "half-close"]
LOOPBACK = "127.0.0.1"
_libc = ctypes.CDLL(None, use_errno=True)


def own_sockets() -> Iterator[socket.socket]:
    """A second descriptor of every IPv4 stream socket of this process; closing it leaves the first as it was."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                if (found.family, found.type) == (socket.AF_INET, socket.SOCK_STREAM):
                    yield found


def control_ports() -> set[int]:
    """Ports on which this process listens on loopback."""
    listening = (one for one in own_sockets() if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    return {port for host, port in (one.getsockname() for one in listening) if host == LOOPBACK}


def break_connections(how: Break, ports: Collection[int], limit: int | None = None) -> int:
    """Break this process's ends of connections to or from these ports: all, or `limit` drawn; returns how many."""
    found = [ends for one in own_sockets() if (ends := _ends(one)) and {ends[0][1], ends[1][1]} & set(ports)]
    chosen = found if limit is None else random.sample(found, min(limit, len(found)))
    for one in own_sockets():
        if _ends(one) in chosen:
            (_reset if how == "reset" else _half_close)(one)
    return len(chosen)


def _ends(one: socket.socket) -> tuple[Any, Any] | None:
    """Own and other address of a connection; None of a socket that has none."""
    try:
        return one.getsockname(), one.getpeername()
    except OSError:
        return None


def _half_close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_WR)


def _reset(one: socket.socket) -> None:
    """What connects to nobody lets go of its connection: the kernel sends RST, and both ends see ECONNRESET."""
    nobody = struct.pack("@H14x", socket.AF_UNSPEC)
    if _libc.connect(one.fileno(), nobody, len(nobody)):
        raise OSError(ctypes.get_errno(), "the connection could not be reset")

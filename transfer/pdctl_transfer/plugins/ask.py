"""One question over HTTP, with the standard library: within a deadline, up to so many bytes, and to nobody else.

Plugins run inside engines, so nothing may be imported that an engine does not have. A peer that drips, never ends or
sends one elsewhere costs its answer, not the engine's scheduler.
"""

import socket
import time
from http.client import HTTPConnection, HTTPException
from typing import Any, Final
from urllib.parse import urlsplit

DEADLINE_S: Final = 5.0
LIMIT_BYTES: Final = 4 << 20
"""A hundred times the layout of a model of 48 layers."""


class _Socket(socket.socket):
    """A connection whose every wait ends with one deadline: http.client's own timeout begins anew with each byte."""

    ends = 0.0

    def _wait(self) -> None:
        left = self.ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        self.settimeout(left)

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """What `makefile` reads through."""
        self._wait()
        return super().recv_into(*args, **kwargs)

    def sendall(self, *args: Any, **kwargs: Any) -> None:
        """Its timeout is for all of the data."""
        self._wait()
        super().sendall(*args, **kwargs)


class _Connection(HTTPConnection):
    ends = 0.0

    def connect(self) -> None:
        """To the first address of the host that takes it."""
        fault: OSError = OSError("no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            sock = _Socket(family, kind, protocol)
            sock.ends = self.ends
            try:
                sock._wait()
                sock.connect(address)
            except OSError as error:
                sock.close()
                fault = error
                continue
            self.sock = sock
            return
        raise fault


def ask(
    method: str,
    url: str,
    body: bytes | None = None,
    *,
    deadline_s: float = DEADLINE_S,
    limit_bytes: int = LIMIT_BYTES,
) -> tuple[int, bytes]:
    """Status and body. Raises OSError, also for what is no HTTP or too long. No redirect is followed."""
    parts = urlsplit(url)
    connection = _Connection(parts.hostname or "", parts.port or 80)
    connection.ends = time.monotonic() + deadline_s
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", "Connection": "close"})
        answer = connection.getresponse()
        content = answer.read(limit_bytes + 1)
    except (HTTPException, ValueError) as fault:
        raise OSError(f"not HTTP: {type(fault).__name__}") from fault
    finally:
        connection.close()
    if len(content) > limit_bytes:
        raise OSError(f"an answer of more than {limit_bytes >> 20} MiB")
    if answer.length:
        raise OSError("cut off")
    if answer.getheader("Content-Encoding", "identity") != "identity":
        raise OSError("compressed, which was not asked for")
    return answer.status, content

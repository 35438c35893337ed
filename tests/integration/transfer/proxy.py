"""A TCP proxy that fails where a test wants it to. Ranks are reached through it by the address they advertise."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Literal

Way = Literal["to decode", "to prefill"]
ADVERTISED = "127.0.0.2"


class Proxy:
    """Listens on the port of a prefill rank at another address, and passes everything on until told otherwise."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server((ADVERTISED, port))
        self._connections: list[Connection] = []
        self._cut_first: tuple[Way, int] | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def cut_first(self, way: Way, after: int) -> None:
        """The next connection is reset once so many bytes went this way; those after it are not."""
        self._cut_first = (way, after)

    def darken(self, way: Way) -> None:
        """Nothing more goes this way on any connection that stands; later ones are whole."""
        for connection in self._connections:
            connection.dark = way

    @property
    def connections(self) -> int:
        """How many there ever were."""
        return len(self._connections)

    def close(self) -> None:
        """Refuse new connections and reset those that stand."""
        self._listener.close()
        for connection in self._connections:
            connection.reset()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self._target)
            except OSError:  # nobody is there, which the client learns by the end of its connection
                client.close()
                continue
            self._connections.append(Connection(client, upstream, self._cut_first))
            self._cut_first = None


class Connection:
    """What decode opened, and its continuation to prefill."""

    def __init__(self, decode: socket.socket, prefill: socket.socket, cut: tuple[Way, int] | None) -> None:
        self._ends = decode, prefill
        self._cut = cut
        self.dark: Way | None = None
        for way, source, sink in (("to prefill", decode, prefill), ("to decode", prefill, decode)):
            threading.Thread(target=self._pass, args=(way, source, sink), daemon=True).start()

    def reset(self) -> None:
        """RST to both."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)  # wakes whoever reads it, who would keep it open
                end.close()

    def _pass(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self._cut is not None and self._cut[0] == way and passed + len(data) >= self._cut[1]:
                    sink.sendall(data[: self._cut[1] - passed])
                    break
                passed += len(data)
                if self.dark != way:
                    sink.sendall(data)
        self.reset()


@contextlib.contextmanager
def proxied(*ports: int) -> Iterator[list[Proxy]]:
    """A proxy before each of these ports."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(Proxy(port))) for port in ports]

"""An HTTP server that does each harm a server can do to who asks it.

As a process: `python -m tests.hostile MODE --port N`, so that it can stand in the place of a unit.
"""

import argparse
import gzip
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_MIB: Final = 1 << 20
_BOMB_MIB: Final = 1024


class Client:
    """One connection, after its request was read."""

    def __init__(self, sock: socket.socket, over: threading.Event) -> None:
        self.sock, self.over, self.path = sock, over, b""

    def read(self) -> None:
        """The request, its body too."""
        text = b""
        while b"\r\n\r\n" not in text:
            more = self.sock.recv(65536)
            if not more:
                raise ConnectionError
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        self.path = head.split()[1]
        length = re.search(rb"content-length: (\d+)", head.lower())
        missing = int(length[1]) - len(body) if length else 0
        while missing > 0:
            missing -= len(self.sock.recv(min(missing, 65536))) or missing

    def say(self, text: bytes) -> None:
        self.sock.sendall(text)

    def drip(self, text: bytes) -> None:
        """A byte a time, for ever."""
        while True:
            for at in range(len(text)):
                self.say(text[at : at + 1])
                if self.over.wait(0.05):
                    return

    def head(self, *lines: str, status: str = "200 OK") -> None:
        self.say("\r\n".join((f"HTTP/1.1 {status}", *lines, "", "")).encode())


def silent(client: Client) -> None:
    client.over.wait()


def drip(client: Client) -> None:
    client.head("Content-Length: 1000000")
    client.drip(b"[" + b" " * 1000)


def drip_headers(client: Client) -> None:
    client.say(b"HTTP/1.1 200 OK\r\n")
    client.drip(b"X-More: yes\r\n")


def continues(client: Client) -> None:
    """Informational answers, and never the one that counts."""
    while not client.over.wait(0.001):
        client.say(b"HTTP/1.1 100 Continue\r\n\r\n")


def endless(client: Client) -> None:
    client.head()
    while True:
        client.say(b"[" * _MIB)


def endless_chunks(client: Client) -> None:
    client.head("Transfer-Encoding: chunked")
    while True:
        client.say(b"%x\r\n" % _MIB + b"[" * _MIB + b"\r\n")


def promised(client: Client) -> None:
    client.head("Content-Length: 1000000000000000")
    while True:
        client.say(b" " * _MIB)


def deep(client: Client) -> None:
    body = b"[" * 200_000
    client.head(f"Content-Length: {len(body)}")
    client.say(body)


def wide(client: Client) -> None:
    """Small as text, large as objects."""
    body = b"[" + b"{}," * (500 * 1024) + b"{}]"
    client.head(f"Content-Length: {len(body)}")
    client.say(body)


def number(client: Client) -> None:
    body = b"9" * 100_000
    client.head(f"Content-Length: {len(body)}")
    client.say(body)


def bomb(client: Client) -> None:
    body = _bomb()
    client.head(f"Content-Length: {len(body)}", "Content-Encoding: gzip")
    client.say(body)


def header(client: Client) -> None:
    client.say(b"HTTP/1.1 200 OK\r\nX-Long: ")
    for _ in range(10):
        client.say(b"x" * _MIB)
    client.say(b"\r\n\r\n")


def redirect(client: Client) -> None:
    """To itself, where all would be well."""
    if client.path == b"/elsewhere":
        client.head("Content-Length: 2")
        client.say(b"{}")
    else:
        client.head("Location: /elsewhere", "Content-Length: 0", status="302 Found")


def cut(client: Client) -> None:
    client.head("Content-Length: 100")
    client.say(b"{")


def reset(client: Client) -> None:
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def garbage(client: Client) -> None:
    client.say(bytes(range(256)) * 100)


def escapes(client: Client) -> None:
    body = b"\x1b]0;owned\x07\x1b[2J\r\nand a second line"
    client.head(f"Content-Length: {len(body)}", status="500 No")
    client.say(body)


def nothing(client: Client) -> None:
    client.head("Content-Length: 0")


MODES: Final[dict[str, Callable[[Client], None]]] = {
    do.__name__: do
    for do in (
        silent, drip, drip_headers, continues, endless, endless_chunks, promised, deep, wide, number, bomb, header,
        redirect, cut, reset, garbage, escapes, nothing,
    )
}  # fmt: skip
ALIVE: Final = ("endless", "endless_chunks", "promised", "deep", "wide", "number", "bomb", "cut", "nothing", "drip")
"""Answer 200, which is all that is asked of a health page."""


@contextmanager
def hostile(mode: str, port: int = 0) -> Iterator[int]:
    """The port of a server that does one harm to each who asks, at every path."""
    over = threading.Event()
    if mode == "bomb":
        _bomb()
    with socket.create_server(("127.0.0.1", port), backlog=128) as server:
        threading.Thread(target=_accept, args=(server, mode, over), daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)


def _accept(server: socket.socket, mode: str, over: threading.Event) -> None:
    with suppress(OSError):
        while not over.is_set():
            sock, _ = server.accept()
            threading.Thread(target=_serve, args=(sock, mode, over), daemon=True).start()


def _serve(sock: socket.socket, mode: str, over: threading.Event) -> None:
    client = Client(sock, over)
    with sock, suppress(OSError):
        client.read()
        MODES[mode](client)
        if mode != "reset":
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):  # else what it has not read yet is lost to a reset
                pass


def peak_kib() -> int:
    """The most memory that this process has had. Not `ru_maxrss`: that begins with what the process before had."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


_made: list[bytes] = []


def _bomb() -> bytes:
    """A GiB of zeros as a MiB."""
    if not _made:
        part = gzip.compress(b"\0" * 16 * _MIB, 6)
        _made.append(part * (_BOMB_MIB // 16))
    return _made[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--port", type=int, required=True)
    given, _ = parser.parse_known_args()
    with hostile(given.mode, given.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()

"""One exchange over HTTP on httpx, within one deadline: imported by the first request, not at start-up.

httpx bounds each operation, and a server that sends a byte a second ends none of them. So its sockets are ours: each
wait is cut to what is left of the whole. Nothing is decompressed, no redirect is followed, and neither proxies nor
passwords are taken from the environment.
"""

import socket
import ssl
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, cast

from pdctl.engines.deadline import Deadline

sys.modules.setdefault("httpx._main", cast(Any, None))  # its command line, for which it would import click and rich

import httpcore  # noqa: E402
import httpx  # noqa: E402

_SENT_AT_ONCE = 64 * 1024


class Oversized(Exception):
    """The body is longer than the caller will take."""


def exchange(
    method: str, url: str, headers: dict[str, str], content: bytes | None, deadline: Deadline, limit_bytes: int
) -> tuple[int, bytes]:
    """Status and body of one request; a limit of 0 asks for the status only, and reads no body.

    Raises OSError (TimeoutError for the deadline), ValueError for what is no HTTP or no URL, Oversized.
    """
    try:
        with (
            httpx.Client(transport=_Transport(deadline), trust_env=False, timeout=None) as client,
            client.stream(method, url, headers=headers, content=content) as response,
        ):
            return response.status_code, _body(response, limit_bytes) if limit_bytes else b""
    except httpcore.LocalProtocolError as error:  # its text quotes the header that it refuses, which may be a key
        raise ValueError("not a request that HTTP can carry") from error
    except (httpcore.ProtocolError, httpcore.NetworkError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _body(response: httpx.Response, limit_bytes: int) -> bytes:
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise ValueError(f"compressed ({encoding[:20]}), which was not asked for")
    if int(response.headers.get("content-length", 0)) > limit_bytes:
        raise Oversized
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > limit_bytes:
            raise Oversized
    return bytes(body)


class _Transport(httpx.BaseTransport):
    """One connection a request."""

    def __init__(self, deadline: Deadline) -> None:
        self._network = _Network(deadline)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Connect, send, and read the headers."""
        url = request.url
        secure = url.scheme == "https"
        if not secure and url.scheme != "http":
            raise httpx.UnsupportedProtocol(f"{url.scheme or 'no scheme'}: neither http nor https")
        origin = httpcore.Origin(url.raw_scheme, url.raw_host, url.port or (443 if secure else 80))
        context = ssl.create_default_context() if secure else None
        connection = httpcore.HTTPConnection(origin, ssl_context=context, network_backend=self._network)
        target = httpcore.URL(scheme=origin.scheme, host=origin.host, port=origin.port, target=url.raw_path)
        asked = httpcore.Request(
            request.method, target, headers=request.headers.raw, content=cast(Iterable[bytes], request.stream)
        )
        try:
            answer = connection.handle_request(asked)
        except BaseException:
            connection.close()
            raise
        return httpx.Response(answer.status, headers=answer.headers, stream=_Stream(answer, connection))


class _Stream(httpx.SyncByteStream):
    """The body, and the connection that ends with it."""

    def __init__(self, answer: httpcore.Response, connection: httpcore.HTTPConnection) -> None:
        self._answer, self._connection = answer, connection

    def __iter__(self) -> Iterator[bytes]:
        yield from cast(Iterable[bytes], self._answer.stream)

    def close(self) -> None:
        """Hang up, whatever is still on its way."""
        self._connection.close()


class _Network(httpcore.NetworkBackend):
    """Opens connections within the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Try each address of the host in turn. Raises OSError."""
        fault: OSError = OSError("no address")
        for family, kind, protocol, _, address in _addresses(host, port, self._deadline):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(self._deadline.wait())
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                sock.close()
                fault = error
                continue
            return _Socket(sock, self._deadline)
        raise fault


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    """What a name resolves to. A resolver knows no deadline, so it is asked from a thread that may be left behind."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass
    answers: list[list[Any] | OSError] = []

    def look_up() -> None:
        try:
            answers.append(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(deadline.wait())
    if not answers:
        raise TimeoutError
    if isinstance(answers[0], OSError):
        raise answers[0]
    return answers[0]


class _Socket(httpcore.NetworkStream):
    """A connection whose every wait ends with the deadline."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._socket, self._deadline = sock, deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """At least one byte, or none at the end. Raises OSError."""
        self._socket.settimeout(self._deadline.wait())
        return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """All of it. Raises TimeoutError; httpcore.WriteError where the peer hung up, who may have answered before."""
        left = memoryview(buffer)
        while left:
            self._socket.settimeout(self._deadline.wait())
            try:
                left = left[self._socket.send(left[:_SENT_AT_ONCE]) :]
            except TimeoutError:
                raise
            except OSError as error:
                raise httpcore.WriteError(error.strerror or str(error)) from error

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """The same connection under TLS. Raises OSError, which ssl.SSLError is."""
        self._socket.settimeout(self._deadline.wait())  # OpenSSL's calls take it for the whole handshake
        return _Socket(ssl_context.wrap_socket(self._socket, server_hostname=server_hostname), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        """The socket; nothing else is asked for."""
        return self._socket if info == "socket" else None

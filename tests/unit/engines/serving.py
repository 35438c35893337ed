"""A small HTTP server for tests of what asks engines."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Says what `answer` is told; a subclass has the methods."""

    def answer(self, status: int, body: bytes) -> None:
        """One whole answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class Recorded(Handler):
    """Answers GETs from the server's `answers` by path; 404 for anything else. `asked`: paths, each with its key."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        self.answer(*server.answers.get(self.path, (404, b"not found")))


@contextmanager
def serving(handler: type[Handler], **state: Any) -> Iterator[ThreadingHTTPServer]:
    """The server while it runs, with `state` as its attributes."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        vars(server).update(state)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()

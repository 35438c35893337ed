"""What a request must pass before it is looked at: the engine's key, if it has one, and a limit on its body."""

import hmac
import json
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pdctl.errors import InputError

MAX_BODY: Final = 8 << 20
"""Bytes; the longest prompts that fit an engine are a hundredth of it."""
OPEN: Final = ("/health", "/metrics")
"""Paths that probes and collectors ask without a key, as SGLang leaves them open."""
NO_KEY: Final = "PD3057"
TOO_LONG: Final = "PD3058"


class Door:
    """An ASGI application before another one."""

    def __init__(self, app: ASGIApp, key: str | None = None) -> None:
        self._app = app
        self._token = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer 401 or 413."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in (b"authorization", b"content-length")}
        sent = headers.get(b"authorization", b"")
        if self._token and not scope["path"].startswith(OPEN) and not hmac.compare_digest(sent, self._token):
            await _answer(send, 401, NO_KEY, "this engine asks for its key: Authorization: Bearer KEY")
            return
        if int(headers.get(b"content-length", b"0")) > MAX_BODY:
            await _answer(send, 413, TOO_LONG, _LONG)
            return
        await self._app(scope, _counted(receive), send)


def _counted(receive: Receive) -> Receive:
    """`receive` that raises InputError (PD3058) once a body of unknown length is too long."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY:
            raise InputError(_LONG, code=TOO_LONG)
        return message

    return counted


_LONG: Final = f"a body of more than {MAX_BODY >> 20} MiB"


async def _answer(send: Send, status: int, code: str, message: str) -> None:
    error = {"code": code, "message": message, "type": "pdctl", "status": status}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

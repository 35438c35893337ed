"""What a Mooncake engine that somebody else started says of itself: asked at its own port, as its peers ask it.

The kernel cannot tell which of a process's listeners are Mooncake's, nor who holds a verbs device open: in an engine
with GPUs NCCL does. What an engine tells its peers decides what they write over. Observed (0.3.13): a request is its
length as eight bytes, little endian, and that many: one for the kind of request, 1 for this, and JSON; so is the
answer.
"""

import json
import socket
import struct
import time
from typing import Any, Final

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Transport
from pdctl_transfer.fabric.evidence import holds_verbs, open_listeners

ANSWER_S: Final = 5.0
_ASK: Final = struct.pack("<Q", 3) + b"\x01{}"
_MOST_BYTES: Final = 64 << 20


def describe(session: str) -> dict[str, Any]:
    """What the engine with this session id, `host:port`, tells its peers; empty where it is not understood.

    FabricError PD4017 where nothing listens there, so that there is no engine to adopt.
    """
    host, _, port = session.rpartition(":")
    if not host or not port.isdigit() or int(port) > 0xFFFF:
        raise FabricError(f"{session!r} is no session of Mooncake's, which is host:port", code="PD4017")
    try:
        wire = socket.create_connection((host.strip("[]"), int(port)), ANSWER_S)
    except OSError as error:
        raise FabricError(f"no Mooncake engine answers at {session}: {error}", code="PD4017") from error
    with wire:
        try:
            return _answer(wire)
        except OSError:
            return {}


def transport(described: dict[str, Any]) -> Transport:
    """RDMA where the engine says so and the process holds a verbs device, TCP where it says so and listens for it."""
    match described.get("protocol"):
        case "rdma" if holds_verbs():
            return "rdma"
        case "tcp" if described.get("tcp_data_port") in open_listeners():
            return "tcp"
    return "unknown"


def ports(session: str, described: dict[str, Any]) -> tuple[int, ...]:
    """The engine's own two of those ports on which this process listens at every interface."""
    own = {int(session.rpartition(":")[2]), described.get("tcp_data_port")}
    return tuple(sorted(port for port in open_listeners() if port in own))


def _answer(wire: socket.socket) -> dict[str, Any]:
    end = time.monotonic() + ANSWER_S
    wire.sendall(_ASK)
    head = _read(wire, 9, end)
    (length,) = struct.unpack_from("<Q", head.ljust(9, b"\0"))
    if not 1 < length <= _MOST_BYTES:
        return {}
    try:
        described = json.loads(_read(wire, length - 1, end))
    except (ValueError, RecursionError):
        return {}
    return described if isinstance(described, dict) else {}


def _read(wire: socket.socket, nbytes: int, end: float) -> bytes:
    """So many bytes, fewer where it says no more. TimeoutError."""
    got = bytearray()
    while len(got) < nbytes:
        wire.settimeout(max(0.001, end - time.monotonic()))
        part = wire.recv(min(nbytes - len(got), 1 << 20))
        if not part:
            break
        got += part
    return bytes(got)

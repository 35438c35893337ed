"""Frames over a stream: length, tag, body; sans I/O.

A connection begins with a preamble from both sides: magic, protocol number, 16 random bytes. A frame's tag is a keyed
BLAKE2 hash over a counter and the body; the key comes from the shared secret (empty where none is set) and both
preambles, so a frame can neither be forged without the secret nor replayed, and noise is told from a peer at once.
Until one frame was right whoever sends it is a stranger, so the first one must be small: peers begin with a heartbeat.
"""

import hashlib
import hmac
import os
from typing import Final

from pdctl_transfer.errors import TransferError

MAGIC: Final = b"PDCT"
PREAMBLE: Final = 4 + 1 + 16
HEAD: Final = 4 + 16
FIRST_FRAME: Final = 64 << 10
MAX_FRAME: Final = 80 << 20


class FrameError(TransferError):
    """What came is not from a peer that speaks this protocol with this secret. PD4007 version, PD4008 anything else."""

    code = "PD4008"


class Framer:
    """One connection's framing. `connector` is True on the side that opened it; both must differ."""

    def __init__(self, secret: bytes | None, *, connector: bool, protocol: int) -> None:
        self._secret = secret or b""
        self._connector = connector
        self._protocol = protocol
        self.preamble = MAGIC + bytes([protocol]) + os.urandom(16)
        self._buffer = bytearray()
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = self._received = 0

    @property
    def open(self) -> bool:
        """Whether the other side's preamble has come; frames can be sent only then."""
        return self._keys is not None

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived, return the bodies that it completed. Raises FrameError; the connection must be closed."""
        self._buffer += data
        if self._keys is None:
            self._take_preamble()
            if self._keys is None:
                return []
        bodies = []
        at = 0
        while len(self._buffer) - at >= HEAD:
            length = int.from_bytes(self._buffer[at : at + 4], "big")
            limit = MAX_FRAME if self._received else FIRST_FRAME
            if length > limit:
                raise FrameError(f"a frame of {length} bytes, over the limit of {limit}")
            if len(self._buffer) - at < HEAD + length:
                break
            body = bytes(self._buffer[at + HEAD : at + HEAD + length])
            tag = bytes(self._buffer[at + 4 : at + HEAD])
            if not hmac.compare_digest(tag, self._tag(self._keys[1], self._received, body)):
                raise FrameError("a frame that this secret did not sign")
            self._received += 1
            bodies.append(body)
            at += HEAD + length
        del self._buffer[:at]
        return bodies

    def frame(self, body: bytes) -> bytes:
        """The body, ready to be sent. The other preamble must have come, and the body must fit its limit."""
        if self._keys is None:
            raise FrameError("no preamble yet")
        limit = MAX_FRAME if self._sent else FIRST_FRAME
        if len(body) > limit:
            raise FrameError(f"a message of {len(body)} bytes, over the limit of {limit}")
        tag = self._tag(self._keys[0], self._sent, body)
        self._sent += 1
        return len(body).to_bytes(4, "big") + tag + body

    def _take_preamble(self) -> None:
        got = self._buffer[:PREAMBLE]
        if not MAGIC.startswith(got[:4]) or (len(got) >= 4 and got[:4] != MAGIC):
            raise FrameError("no pdctl peer: the magic is missing")
        if len(got) >= 5 and got[4] != self._protocol:
            raise FrameError(f"protocol {got[4]}, this side speaks {self._protocol}", code="PD4007")
        if len(got) < PREAMBLE:
            return
        other = bytes(got)
        del self._buffer[:PREAMBLE]
        first, second = (self.preamble, other) if self._connector else (other, self.preamble)
        keys = [self._key(first + second, way) for way in (b"out", b"in")]
        self._keys = (keys[0], keys[1]) if self._connector else (keys[1], keys[0])

    def _key(self, salt: bytes, way: bytes) -> bytes:
        return hmac.digest(self._secret, salt + way, "sha256")

    @staticmethod
    def _tag(key: bytes, counter: int, body: bytes) -> bytes:
        return hashlib.blake2b(counter.to_bytes(8, "big") + body, key=key, digest_size=16).digest()

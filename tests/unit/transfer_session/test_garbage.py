"""Whatever is thrown at a listening port, peers go on and nothing is kept of it."""

import os
import random
import socket
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from pdctl_transfer.session.options import Rank
from pdctl_transfer.session.wire.frames import MAGIC, Framer
from pdctl_transfer.session.wire.messages import PROTOCOL, Ask, Beat, Hello, Register, Withdraw, encode
from tests.unit.transfer_session.world import FAST, World, manifest


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def throw(port: int, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.settimeout(0.2)
        try:
            sock.sendall(data)
            sock.recv(64)
        except OSError:
            pass


def signed(port: int, *messages: bytes, secret: bytes | None = None) -> None:
    """A peer that knows the protocol, and misuses it."""
    framer = Framer(secret, connector=True, protocol=PROTOCOL)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        sock.settimeout(0.3)
        sock.sendall(framer.preamble)
        try:
            while not framer.open:
                framer.feed(sock.recv(4096))
            for message in messages:
                sock.sendall(framer.frame(message))
            sock.recv(4096)
        except OSError:
            pass


@pytest.mark.parametrize("seed", range(3))
def test_garbage_is_harmless(seed: int) -> None:
    rng = random.Random(seed)
    with World(manifest("prefill", 1), manifest("decode", 1), replace(FAST, handshake_s=1)) as world:
        (prefill,) = [peer for peer, _ in world.prefill.values()]
        ports = [world.registry.port, prefill.port]
        assert world.transfer()[1][0].wait(10) == "confirmed"
        before = descriptors()
        for port in ports:
            for _ in range(8):
                throw(port, rng.randbytes(rng.randrange(0, 3000)))
                throw(port, MAGIC + bytes([PROTOCOL]) + rng.randbytes(rng.randrange(0, 2000)))
            throw(port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            hello = Hello(1, "", Rank(9, 9), "x", b"{}", "memory", b"", (), 1)
            signed(port, rng.randbytes(50))
            signed(port, encode(hello), encode(hello))
            signed(port, encode(Ask(1, "a", {"kv": b"123"}, {}, "none")), encode(Withdraw(1, "a")))
            signed(port, encode(Register(Rank(0, 0), "h", 1, "x", b"not a manifest")))
            signed(port, *[encode(Beat())] * 5)
        assert world.registry.ranks()[0].port == prefill.port
        _, receivers, wrong = world.transfer()
        assert receivers[0].wait(10) == "confirmed"
        assert wrong() == []
        end = time.monotonic() + 5
        while descriptors() > before and time.monotonic() < end:
            os.sched_yield()
        assert descriptors() <= before


def test_a_flood_of_silent_connections_does_not_shut_peers_out_for_long() -> None:
    """They are dropped when they have said nothing for a while; more than a number are not even kept."""
    with World(manifest("prefill", 1), manifest("decode", 1), FAST) as world:
        (prefill,) = [peer for peer, _ in world.prefill.values()]
        assert world.transfer()[1][0].wait(10) == "confirmed"
        socks = [socket.create_connection(("127.0.0.1", prefill.port)) for _ in range(300)]
        assert world.transfer()[1][0].wait(10) == "confirmed"
        for sock in socks:
            sock.close()

"""Whoever connects without proving anything is one of few, may send little, and keeps no peer out."""

import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pdctl_transfer.layout.read import encode_manifest
from pdctl_transfer.session.drive.listener import GREETING_S, MAX_GUESTS
from pdctl_transfer.session.wire.frames import FIRST_FRAME, MAGIC, Framer
from pdctl_transfer.session.wire.messages import PROTOCOL, Beat, encode
from tests.unit.transfer_session.world import FAST, World, manifest

IDLE = 500
MIB = 1 << 20


@contextmanager
def idle_connections(port: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """Many that connect and then say nothing, or no more than this."""
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)) for _ in range(IDLE)]
        for sock in socks:
            try:
                sock.sendall(said)
            except OSError:  # it was dropped already
                pass
        yield socks


@contextmanager
def many_descriptors(wanted: int = 4096) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(wanted, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def serves(world: World) -> None:
    senders, receivers, wrong = world.transfer()
    assert {handle.wait(10) for handle in senders + receivers} == {"confirmed"}
    assert wrong() == []


@pytest.mark.parametrize(
    "said", [b"", MAGIC, MAGIC + bytes([PROTOCOL]) + bytes(16)], ids=["silent", "begun", "greeted"]
)
@pytest.mark.parametrize("port", ["control", "registry"])
def test_many_idle_connections_keep_nobody_out(port: str, said: bytes) -> None:
    """Links and registrations that are new are made at once, and those that stand go on."""
    with many_descriptors(), World(manifest("prefill", 1), manifest("decode", 1), FAST) as world:
        ((prefill, _),) = world.prefill.values()
        at = prefill.port if port == "control" else world.registry.port
        with idle_connections(at, said):
            serves(world)
            with idle_connections(at, said):
                serves(world)


def dropped(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def test_guests_are_few() -> None:
    """Of those that came too many are sent away, the oldest first."""
    with many_descriptors(), World(manifest("prefill", 1), manifest("decode", 1), FAST) as world:
        ((prefill, _),) = world.prefill.values()
        with idle_connections(prefill.port) as socks:
            end = time.monotonic() + 10
            while not dropped(socks[IDLE - MAX_GUESTS - 1]) and time.monotonic() < end:
                time.sleep(0.01)
            assert [sock for sock in socks if dropped(sock)] == socks[: IDLE - MAX_GUESTS]


def test_who_has_begun_to_speak_outlives_who_is_silent() -> None:
    """However long its first message takes, as far as GREETING_S."""
    with (
        many_descriptors(),
        World(manifest("prefill", 1), manifest("decode", 1), FAST) as world,
        socket.create_connection(world.at, timeout=10) as slow,
    ):
        framer = Framer(None, connector=True, protocol=PROTOCOL)
        slow.sendall(framer.preamble)
        heard: list[bytes] = []
        while not heard:  # the other side has proven itself
            heard += framer.feed(slow.recv(4096))
        with idle_connections(world.at[1]) as socks:
            end = time.monotonic() + 10
            while not dropped(socks[IDLE - MAX_GUESTS]) and time.monotonic() < end:
                time.sleep(0.01)
            slow.sendall(framer.frame(encode(Beat())))
            while len(heard) < 2:
                data = slow.recv(4096)
                assert data, "it was dropped"
                heard += framer.feed(data)


def test_a_manifest_may_be_larger_than_a_first_frame() -> None:
    """Registrations and handshakes carry one, so neither is what a connection begins with."""
    prefill, taken = manifest("prefill", 1, layers=200), manifest("decode", 1, layers=200)
    assert len(encode_manifest(prefill)) > FIRST_FRAME
    with World(prefill, taken, FAST) as world:
        serves(world)


HOST = """
import json, sys
from pathlib import Path
from msgspec.structs import replace
from tests.unit.transfer_session.world import *

def rss():
    return {line.split(':')[0]: int(line.split()[1]) for line in Path('/proc/self/status').read_text().splitlines()
            if line.startswith(('VmHWM', 'VmRSS'))}

options = replace(FAST, secret=b'which the strangers do not know')
with World(manifest('prefill', 1), manifest('decode', 1), options) as w:
    ((prefill, _),) = w.prefill.values()
    w.transfer()[1][0].wait(10)
    print(json.dumps({'ports': [prefill.port, w.registry.port]} | rss()), flush=True)
    sys.stdin.readline()
    ends = [h.wait(10) for h in w.transfer()[1]]
    print(json.dumps({'ends': ends} | rss()), flush=True)
"""


def flood(port: int, connections: int, announced: int, sent: int) -> int:
    """Announce a large frame on each connection and send what is taken of it; bytes that were taken in all."""
    blob = memoryview(MAGIC + bytes([PROTOCOL]) + os.urandom(16) + announced.to_bytes(4, "big") + bytes(16 + sent))
    with ExitStack() as stack:
        socks = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(connections)]
        at = dict.fromkeys(socks, 0)
        for sock in socks:
            sock.setblocking(False)
        end = time.monotonic() + 20
        while (live := [sock for sock in at if at[sock] < len(blob)]) and time.monotonic() < end:
            for sock in select.select([], live, [], 1)[1]:
                try:
                    at[sock] += sock.send(blob[at[sock] : at[sock] + MIB])
                except BlockingIOError:
                    pass
                except OSError:
                    at[sock] = len(blob)
        return sum(at.values())


def test_large_frames_of_strangers_are_not_kept() -> None:
    """Forty that announce 79 MiB each, at a rank and at the registry: less than 100 MiB more, and peers are served."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        before = json.loads(host.stdout.readline())
        for port in before["ports"]:
            flood(port, 40, 79 * MIB, 8 * MIB)
        host.stdin.write("\n")
        host.stdin.flush()
        after = json.loads(host.stdout.readline())
        assert after["ends"] == ["confirmed"]
        assert (after["VmHWM"] - before["VmRSS"]) * 1024 < 100 * MIB


@pytest.mark.parametrize("length", [FIRST_FRAME + 1, 79 * MIB])
def test_a_first_frame_must_be_small(length: int) -> None:
    """It is refused by its announcement, before anything of it has come."""
    with World(manifest("prefill", 1), manifest("decode", 1), FAST) as world:
        with socket.create_connection(world.at, timeout=GREETING_S / 2) as sock:
            sock.sendall(MAGIC + bytes([PROTOCOL]) + os.urandom(16) + length.to_bytes(4, "big") + bytes(16))
            while sock.recv(4096):  # its own preamble and proof
                pass
        serves(world)


FULL = """
import os, socket, time, resource
from pdctl_transfer.session.drive.listener import Listener
from tests.unit.transfer_session.world import *

looks = 0
readable = Listener._readable

def counted(self):
    global looks
    looks += 1
    readable(self)

Listener._readable = counted
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
with World(manifest('prefill', 1), manifest('decode', 1), FAST) as w:
    w.transfer()[1][0].wait(10)
    taken = []
    try:
        while True:
            taken.append(os.open('/dev/null', os.O_RDONLY))
    except OSError:
        os.close(taken.pop())
    waiting = socket.create_connection(w.at)  # takes the last one; nobody can accept it
    looks = 0
    time.sleep(1.0)
    print(looks, flush=True)
    for descriptor in taken:
        os.close(descriptor)
    print(w.transfer()[1][0].wait(10), flush=True)
"""


def test_a_process_without_descriptors_does_not_spin() -> None:
    """It looks again later, and serves once there are some."""
    done = subprocess.run(
        [sys.executable, "-c", FULL],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    looks, state = done.stdout.split()
    assert state == "confirmed"
    assert 0 < int(looks) < 50

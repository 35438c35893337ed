"""Whole transfers between processes, over both fabrics."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.transfer.ranks import Spec, indices, pair, rooms
from tests.unit.transfer_session.world import manifest, ranks

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("fabric", ["mooncake", "nixl"])
@pytest.mark.parametrize(("src", "dst"), [((1, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 2), (2, 1))])
def test_state_arrives_whole(fabric: str, src: tuple[int, int], dst: tuple[int, int]) -> None:
    """TP and PP unequal, a process a side, bytes over loopback TCP as the kernel sees it."""
    here, there = manifest("prefill", *src, scale=64), manifest("decode", *dst, scale=64)
    with pair(Spec(here, tuple(ranks(here)), fabric), Spec(there, tuple(ranks(there)), fabric)) as (prefill, decode):
        for pages in (1, 30):
            room = next(rooms)
            ours, theirs = indices(room, 64, pages), indices(room + 1000, 64, pages)
            decode.call("open", room, prefill.call("address"), theirs)
            prefill.call("send", room, ours)
            assert {end[0] for end in decode.call("wait", room) + prefill.call("wait", room)} == {"confirmed"}
            assert decode.call("wrong", room, theirs) == []
        assert prefill.call("observed") == {"tcp"}


WRITE = """
import numpy as np
from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric.base import Blocks, Deadline
from pdctl_transfer.fabric.mooncake import MooncakeFabric

here, there = MooncakeFabric({host!r}), MooncakeFabric({host!r})
src, dst = np.arange(1 << 16, dtype=np.uint8), np.zeros(1 << 16, dtype=np.uint8)
here.register(src.ctypes.data, src.nbytes)
there.register(dst.ctypes.data, dst.nbytes)
at = np.arange(0, 1 << 16, 1 << 12)
peer = here.connect(there.address())
result = here.write(peer, Blocks(src.ctypes.data + at, dst.ctypes.data + at, np.full_like(at, 1 << 12)), Deadline(30))
print(result.ok, bool((src == dst).all()), here.settle(peer), peer.name, flush=True)
try:
    MooncakeFabric({other!r})
except FabricError as error:
    print(error.code, error.message, flush=True)
"""


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.code("PD4010")
@pytest.mark.parametrize(("host", "other"), [("::1", "127.0.0.1"), ("[::1]", "127.0.0.1"), ("127.0.0.1", "::1")])
def test_mooncake_over_either_internet_protocol(host: str, other: str) -> None:
    """All of a process speaks one of them: with the other it would start, and every write would fail."""
    if "::1" in host and not has_ipv6():
        pytest.skip("this machine has no ::1")
    code = WRITE.format(host=host, other=other)
    environment = {name: value for name, value in os.environ.items() if name != "MC_USE_IPV6"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    )
    written, refused = ran.stdout.splitlines()[-2:]
    name = "[::1]:" if "::1" in host else "127.0.0.1:"
    assert written.startswith(f"True True True {name}")
    assert refused.startswith("PD4010")
    assert f"cannot use {other}" in refused


@pytest.mark.parametrize("kind", ["mooncake", "nixl"])
def test_an_idle_fabric_rests(kind: str) -> None:
    """NIXL's own wrapper lets a thread spin: an agent that does nothing burns a core, and two of them a small host."""
    code = (
        "import time; from tests.integration.transfer.ranks import make_fabric\n"
        f"fabric = make_fabric({kind!r}); start = time.process_time(); time.sleep(1)\n"
        "print(time.process_time() - start, flush=True); fabric.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) < 0.3

"""Whole transfers between processes, over both fabrics."""

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

"""A process that may not have the memory: said at the start, with a code, and nothing stays of the attempt."""

import resource
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import FabricError
from pdctl_transfer.session import DecodePeer, PrefillPeer, Rank
from tests.integration.transfer.ranks import OPTIONS, SPAWN, make_fabric
from tests.unit.transfer_session.world import Buffers, manifest

pytestmark = pytest.mark.integration

HUGE = replace(OPTIONS, staging_bytes=4 << 30, chunk_bytes=512 << 20)


def confined(role: str, answer: Connection) -> None:
    """In a process: first too much for what is left of its address space, then as much as there is."""
    made = manifest(role, 1)
    buffers, fabric = Buffers(made, Rank(0, 0), 8), make_fabric("mooncake")
    for array in buffers.arrays:
        fabric.register(array.ctypes.data, array.nbytes)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def start(options: object) -> PrefillPeer | DecodePeer:
        common = made, Rank(0, 0), buffers.regions(), fabric
        if role == "prefill":
            return PrefillPeer(*common, registry=("127.0.0.1", 9), options=options)  # type: ignore[arg-type]
        return DecodePeer(*common, options)  # type: ignore[arg-type]

    try:
        started = start(HUGE)
        if isinstance(started, PrefillPeer):  # its scratch is made by the first use
            try:
                started._driver.scratch.take()
            finally:
                started.close()
        said = "nothing"
    except FabricError as error:
        said = f"{error.code} {error.message}"
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("pdctl")]
    start(OPTIONS).close()
    answer.send((said, left))


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.code("PD4014")
def test_too_little_memory_is_said_and_less_of_it_taken(role: str) -> None:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=confined, args=(role, theirs))
    process.start()
    try:
        assert ours.poll(60), "no answer"
        said, left = ours.recv()
    finally:
        process.kill()
        process.join()
    assert said.startswith(f"PD4014 no memory for {4 << 30} bytes")
    assert left == []

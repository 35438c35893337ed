"""Yardsticks: the same blocks from the same memory to the same receivers, without a session.

The *asynchronous* call is the fabric's own, submitted and looked at until it is done, as sessions write. The
*synchronous* one is Mooncake's, by an engine of its own; it spins on a core while it waits. Both get finished block
lists, and confirm nothing. The *floor* is the asynchronous call and then a message to the other process and back, which
no confirmed request can do without: by threads that wait for nothing else.
"""

import importlib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pdctl_transfer.fabric.base import Blocks, Deadline, finish
from pdctl_transfer.plan import RankId, bind, make_plan
from pdctl_transfer.session import Region
from tests.bench.shape import Shape, manifest

BATCH = 1024
"""Blocks of a synchronous call, as engines send their slices."""
LIMIT_S = 120.0
MESSAGE = 64
"""Bytes of a message of a floor, about those of a confirmation."""


class End(NamedTuple):
    """Where a decode rank is reached, and its memory."""

    address: bytes
    regions: tuple[Region, ...]


Call = Callable[[], None]


class Bare:
    """All ranks of a prefill side, without sessions. `regions`: those of each rank, in the order of `fabrics`."""

    def __init__(self, shape: Shape, fabrics: Sequence[Any], regions: Sequence[Sequence[Region]]) -> None:
        self._manifest = manifest("prefill", shape)
        self._fabrics, self._regions = fabrics, regions
        self._engines: dict[int, Any] = {}
        self._plan: Any = None
        self._ends: Sequence[End] = ()

    def know(self, shape: Shape, ends: Sequence[End]) -> None:
        """The decode side."""
        self._plan, self._ends = make_plan(self._manifest, manifest("decode", shape)), ends

    def asynchronous(self, ids: Sequence[int], theirs: Sequence[int]) -> list[Call]:
        """A call for each pair of ranks."""

        def write(fabric: Any, peer: Any, blocks: Blocks) -> None:
            result = finish(fabric.begin(peer, blocks), Deadline(LIMIT_S))
            assert result.ok, result.cause

        fabrics = self._fabrics
        made = self._blocks(ids, theirs)
        return [partial(write, fabrics[src], fabrics[src].connect(end.address), blocks) for src, end, blocks in made]

    def synchronous(self, ids: Sequence[int], theirs: Sequence[int]) -> list[Call]:
        """A call for each pair of ranks, in batches."""

        def write(engine: Any, name: str, lists: list[list[list[int]]]) -> None:
            for src, dst, length in lists:
                assert engine.batch_transfer_sync_write(name, src, dst, length) == 0

        calls: list[Call] = []
        for src, end, blocks in self._blocks(ids, theirs):
            starts = range(0, len(blocks.length), BATCH)
            lists = [[column[at : at + BATCH].tolist() for column in blocks] for at in starts]
            name = self._fabrics[src].connect(end.address).name
            calls.append(partial(write, self._engine(src), name, lists))
        return calls

    def equal(self, nbytes: int, block: int) -> float:
        """Seconds for so many bytes in blocks of this size, first to first region of the first ranks."""
        here, there = self._regions[0][0], self._ends[0].regions[0]
        at = np.arange(0, here.items * here.item_len, block, dtype=np.int64)
        blocks = Blocks(here.base + at, there.base + at, np.full_like(at, block))
        fabric = self._fabrics[0]
        peer = fabric.connect(self._ends[0].address)
        start = time.perf_counter()
        for _ in range(-(-nbytes // (len(at) * block))):
            assert finish(fabric.begin(peer, blocks), Deadline(LIMIT_S)).ok
        return time.perf_counter() - start

    def _blocks(self, ids: Sequence[int], theirs: Sequence[int]) -> list[tuple[int, End, Any]]:
        """(prefill rank, decode rank, blocks as the plan has them) of each pair that moves something."""
        found = []
        for src, mine in enumerate(self._regions):
            for dst, end in enumerate(self._ends):
                plan = self._plan.between(RankId(0, src), RankId(0, dst))
                blocks = bind(plan, mine, end.regions, {"kv": ids}, {"kv": theirs})
                if len(blocks.length):
                    found.append((src, end, blocks))
        return found

    def _engine(self, rank: int) -> Any:
        """A Mooncake of its own for this rank, started when first asked for."""
        if rank not in self._engines:
            engine = importlib.import_module("mooncake.engine").TransferEngine()
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
            for region in self._regions[rank]:
                assert engine.register_memory(region.base, region.items * region.item_len) == 0
            self._engines[rank] = engine
        return self._engines[rank]


class Echo:
    """The other process's end of a floor: says back what it hears."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := sock.recv(MESSAGE):
            sock.sendall(data)


def messenger(port: int) -> Call:
    """A call that says something to an `Echo` and waits for the answer."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def there_and_back() -> None:
        sock.sendall(b"." * MESSAGE)
        assert sock.recv(MESSAGE)

    return there_and_back


def together(calls: Sequence[Call]) -> float:
    """Seconds until all have returned: a thread for each but a single one."""
    threads = [threading.Thread(target=call) for call in calls[1:]]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    calls[0]()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start

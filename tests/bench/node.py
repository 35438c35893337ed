"""One side of a pair, in a process of its own: `python -m tests.bench.node FD` serves a `Node` over a pipe.

It uses what an engine may use of the core, and nothing else, so that it runs with any revision of it.
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import pdctl_transfer
from pdctl_transfer.fabric.mooncake import MooncakeFabric
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, Region, Registry
from tests.bench.bare import Bare, Echo, End, messenger, together
from tests.bench.harness import in_turn
from tests.bench.shape import Role, Shape, manifest

OPTIONS = Options(bootstrap_s=30, transfer_s=60, silent_s=30)
WAIT_S = 120.0

Plain = tuple[bytes, list[tuple[int, int, int]]]
"""Where a rank is reached, and its regions, without any class of the core's: the other process may have another one."""


class Node:
    """The ranks of one side, each with memory and a fabric. A room's handles are one a rank."""

    def __init__(self, role: Role, shape: Shape, registry: tuple[str, int] | None) -> None:
        self._shape, self._manifest = shape, manifest(role, shape)
        self._registry = Registry() if role == "prefill" else None
        self._at = ("127.0.0.1", self._registry.port) if self._registry else registry
        rng = np.random.default_rng(0)
        entries = self._manifest.stages[0].components[0].entries
        self._arrays: list[list[np.ndarray]] = []
        self._regions: list[tuple[Region, ...]] = []
        self._fabrics: list[Any] = []
        self._peers: list[Any] = []
        for tp in range(shape.tp):
            if role == "prefill":
                arrays = [rng.integers(0, 256, (shape.items, entry.item_len), np.uint8) for entry in entries]
            else:
                arrays = [np.full((shape.items, entry.item_len), 0xEE, np.uint8) for entry in entries]
            fabric = MooncakeFabric()
            for array in arrays:
                fabric.register(array.ctypes.data, array.nbytes)
            regions = tuple(Region(array.ctypes.data, *array.shape) for array in arrays)
            self._arrays.append(arrays)
            self._regions.append(regions)
            self._fabrics.append(fabric)
            memory = list(regions)
            self._peers.append(self._peer(Rank(0, tp), memory, fabric))
        self._handles: dict[int, list[Any]] = {}
        self._bare = Bare(shape, self._fabrics, self._regions)

    def _peer(self, rank: Rank, memory: list[Region], fabric: Any) -> Any:
        if self._manifest.role == "decode":
            return DecodePeer(self._manifest, rank, memory, fabric, OPTIONS)
        assert self._at is not None
        return PrefillPeer(self._manifest, rank, memory, fabric, registry=self._at, options=OPTIONS)

    # Either side.

    def core(self) -> str:
        """The folder that the core was imported from."""
        return str(Path(pdctl_transfer.__file__).parent.parent)

    def registry(self) -> tuple[str, int] | None:
        return self._at

    def ends(self) -> list[Plain]:
        """Where the ranks of this side are reached."""
        regions = [[(region.base, region.items, region.item_len) for region in held] for held in self._regions]
        return [(f.address(), held) for f, held in zip(self._fabrics, regions, strict=True)]

    def cpu(self) -> float:
        """CPU seconds of all threads of this process so far."""
        return time.process_time()

    def echo(self) -> int:
        """The port of a new echo."""
        self._echo = Echo()
        return self._echo.port

    def wait(self, rooms: Sequence[int]) -> None:
        """Until each is confirmed; then forget them."""
        for room in rooms:
            for handle in self._handles.pop(room):
                assert handle.wait(WAIT_S) == "confirmed", f"room {room}: {handle.state} {handle.failure or ''}"

    # Decode.

    def expect(self, rooms: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Ask for the rooms' state, to be written to these pages."""
        for room, ids in zip(rooms, pages, strict=True):
            self._handles[room] = [peer.open(room, self._at, {"kv": ids}) for peer in self._peers]

    # Prefill.

    def know(self, shape: Shape, ends: Sequence[Plain]) -> None:
        """The decode side that bare calls write to."""
        self._bare.know(shape, [End(address, tuple(Region(*one) for one in held)) for address, held in ends])

    def ready(self, rooms: Sequence[int]) -> None:
        """Open the rooms and return when both sides know them."""
        for room in rooms:
            self._handles[room] = [peer.open(room) for peer in self._peers]
        for handle in self._of(rooms):
            while handle.state == "bootstrapping":
                time.sleep(0.002)
            assert handle.state == "waiting", str(handle.failure)

    def send(self, rooms: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Send these pages, and do not wait."""
        for room, ids in zip(rooms, pages, strict=True):
            for handle in self._handles[room]:
                handle.send({"kv": ids})

    def timed(self, rooms: Sequence[int], pages: Sequence[Sequence[int]]) -> tuple[float, float]:
        """Wall and CPU seconds from the first `send` to the last confirmation, all rooms at once."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.send(rooms, pages)
        self.wait(rooms)
        return time.perf_counter() - wall, time.process_time() - cpu

    def until(self, room: int, ids: Sequence[int], limit_s: float) -> tuple[float, bool]:
        """Seconds from `send` to the confirmation, or so far at the limit; and whether it was confirmed by then."""
        start = time.perf_counter()
        self.send([room], [ids])
        done = all(
            handle.wait(max(0.0, start + limit_s - time.perf_counter())) == "confirmed"
            for handle in self._handles[room]
        )
        return time.perf_counter() - start, done

    def asynchronous(self, ids: Sequence[int], theirs: Sequence[int]) -> float:
        """Seconds of the fabric's own call."""
        return together(self._bare.asynchronous(ids, theirs))

    def synchronous(self, ids: Sequence[int], theirs: Sequence[int]) -> float:
        """Seconds of Mooncake's synchronous call."""
        return together(self._bare.synchronous(ids, theirs))

    def equal(self, nbytes: int, block: int) -> float:
        """Seconds of the fabric's own call for so many bytes in blocks of this size."""
        return self._bare.equal(nbytes, block)

    def in_turn(
        self, rooms: Sequence[int], ids: Sequence[int], theirs: Sequence[int], echo: int
    ) -> tuple[list[float], ...]:
        """Seconds of requests, of asynchronous and synchronous calls, and of floors, in turn; the rooms are ready.
        echo: the port of the other side's."""
        left = iter(rooms)
        asynchronous, synchronous = self._bare.asynchronous(ids, theirs), self._bare.synchronous(ids, theirs)
        there_and_back = messenger(echo)

        def floor() -> float:
            start = time.perf_counter()
            together(asynchronous)
            there_and_back()
            return time.perf_counter() - start

        return in_turn(
            len(rooms),
            lambda: self.timed([next(left)], [ids])[0],
            lambda: together(asynchronous),
            lambda: together(synchronous),
            floor,
        )

    def one_by_one(self, pages: Sequence[Sequence[int]]) -> float:
        """Seconds of an asynchronous call for each, one after the other."""
        calls = [self._bare.asynchronous(ids, ids) for ids in pages]
        return sum(together(each) for each in calls)

    def _of(self, rooms: Sequence[int]) -> Iterator[Any]:
        return (handle for room in rooms for handle in self._handles[room])


def main() -> None:
    """Answer calls until the other end of the pipe is gone."""
    pipe = Connection(int(sys.argv[1]))
    try:
        node = Node(*pipe.recv())
        pipe.send((True, None))
        while True:
            name, args = pipe.recv()
            pipe.send((True, getattr(node, name)(*args)))
    except EOFError:
        pass
    except Exception:  # noqa: BLE001  the other end raises it
        pipe.send((False, traceback.format_exc()))
    sys.stdout.flush()
    os._exit(0)  # closing Mooncake takes long


if __name__ == "__main__":
    main()

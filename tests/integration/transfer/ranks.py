"""Ranks in processes of their own, driven over a pipe.

Each process holds the ranks of one side, or some of them, with real memory and a real fabric; the prefill process may
hold the registry. `Process.call` runs a method of `Host` in it.
"""

import gc
import itertools
import multiprocessing as mp
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from pdctl_transfer.fabric.base import Blocks, Deadline, WriteResult, batches
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, Registry
from tests.integration.transfer.trend import at_work
from tests.unit.transfer_session.world import FAST, Buffers

SPAWN = mp.get_context("spawn")
OPTIONS = replace(FAST, transfer_s=15)
rooms = itertools.count(1)


def rooms_of(peer: Any) -> tuple[int, int]:
    """Rooms that have not ended, and what is kept of those that did."""
    machine = peer._driver.machine
    if hasattr(machine, "legs"):
        return len(machine.rooms), len(machine.legs)
    return machine.open, len(machine.requests)


@dataclass(frozen=True)
class Spec:
    """What a process holds."""

    manifest: Manifest
    ranks: tuple[Rank, ...]
    fabric: str = "mooncake"
    options: Options = OPTIONS
    items: int = 64
    registry: tuple[str, int] | None = None
    slow_s: float = 0.0
    registry_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)


class Slow:
    """A fabric that writes few blocks at a time and waits in between, so that a test can act in the middle."""

    def __init__(self, fabric: Any, seconds: float) -> None:
        self._fabric, self._seconds = fabric, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fabric, name)

    def begin(self, peer: Any, blocks: Blocks) -> "SlowWriting":
        parts = batches(blocks, max(1, len(blocks.length) // 20))
        return SlowWriting([self._fabric.begin(peer, part) for part in parts], self._seconds)


class SlowWriting:
    def __init__(self, parts: list[Any], seconds: float) -> None:
        self._parts, self._seconds = deque(parts), seconds
        self._next = 0.0

    def look(self) -> WriteResult | None:
        if self._parts and time.monotonic() < self._next:
            return None
        result: WriteResult | None = self._parts[0].look() if self._parts else WriteResult(ok=True, settled=True)
        if result is None or not result.ok or not self._parts:
            return result
        self._parts.popleft()
        self._next = time.monotonic() + self._seconds
        return None

    def rest(self, deadline: Deadline) -> None:
        wait = self._next - time.monotonic()
        if wait > 0 or not self._parts:
            time.sleep(min(max(0.0, wait), deadline.remaining))
        else:
            self._parts[0].rest(deadline)

    def leave(self) -> WriteResult:
        left: WriteResult = self._parts[0].leave() if self._parts else WriteResult(ok=False, settled=True)
        return left


def make_fabric(kind: str) -> Any:
    if kind == "mooncake":
        from pdctl_transfer.fabric.mooncake import MooncakeFabric

        return MooncakeFabric()
    from pdctl_transfer.fabric.nixl import NixlFabric

    return NixlFabric()


class Host:
    """Lives in the process."""

    buffers_class: type[Buffers] = Buffers

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.registry = None
        at = spec.registry
        if spec.manifest.role == "prefill" and at is None:
            self.registry = Registry(port=spec.registry_port, secret=spec.options.secret)
            at = ("127.0.0.1", self.registry.port)
        self.at = at
        self.buffers: dict[Rank, Buffers] = {}
        self.fabrics: list[Any] = []
        self.peers: dict[Rank, Any] = {}
        self.handles: dict[int, dict[Rank, Any]] = {}
        for rank in spec.ranks:
            buffers = self.buffers[rank] = self.buffers_class(spec.manifest, rank, spec.items)
            fabric = self.fabric_for(buffers)
            for region in buffers.regions():
                fabric.register(region.base, region.nbytes)
            self.fabrics.append(fabric)
            used = Slow(fabric, spec.slow_s) if spec.slow_s else fabric
            if spec.manifest.role == "prefill":
                assert at is not None
                self.peers[rank] = PrefillPeer(
                    spec.manifest, rank, buffers.regions(), used, registry=at, options=spec.options
                )
            else:
                self.peers[rank] = DecodePeer(spec.manifest, rank, buffers.regions(), used, spec.options)

    def fabric_for(self, buffers: Buffers) -> Any:
        return make_fabric(self.spec.fabric)

    def address(self) -> Any:
        return self.at

    def ports(self) -> list[int]:
        own = [peer.port for peer in self.peers.values() if hasattr(peer, "port")]
        return own + ([self.registry.port] if self.registry else [])

    def exposed(self) -> list[int]:
        return [port for fabric in self.fabrics for port in fabric.exposed_ports()]

    def observed(self) -> set[str]:
        return {fabric.observed_transport() for fabric in self.fabrics}

    def send(
        self, room: int, indices: dict[str, list[int]], metadata: bytes = b"m", fill: bool = True, parts: int = 1
    ) -> None:
        """In so many installments: pages come in each, the rest with the last."""
        cuts = [len(indices["kv"]) * n // parts for n in range(parts + 1)]
        paged = [kind for kind in ("kv", "qsa_compressed") if kind in indices]
        for rank, peer in self.peers.items():
            if fill:
                self.buffers[rank].fill(room, indices)
            handle = peer.open(room)
            for start, stop in itertools.pairwise(cuts[:-1]):
                handle.send({kind: indices[kind][start:stop] for kind in paged}, last=False)
            handle.send({**indices, **{kind: indices[kind][cuts[-2] :] for kind in paged}}, metadata)
            self.handles.setdefault(room, {})[rank] = handle

    def open(self, room: int, at: Any = None, indices: dict[str, list[int]] | None = None) -> None:
        for rank, peer in self.peers.items():
            handle = peer.open(room) if self.spec.manifest.role == "prefill" else peer.open(room, tuple(at), indices)
            self.handles.setdefault(room, {})[rank] = handle

    def wait_state(self, room: int, state: str, timeout: float = 20.0) -> bool:
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if all(handle.state == state for handle in self.handles[room].values()):
                return True
            time.sleep(0.002)
        return False

    def wait(self, room: int, timeout: float = 30.0) -> list[tuple[str, str, str, str]]:
        out = []
        for handle in self.handles[room].values():
            state = handle.wait(timeout)
            failure = handle.failure
            out.append((state, failure.code, failure.side, failure.cause) if failure else (state, "", "", ""))
        return out

    def wait_reusable(self, room: int, timeout: float = 30.0) -> bool:
        return all(handle.wait_reusable(timeout) for handle in self.handles[room].values())

    def reusable(self, room: int) -> bool:
        return all(handle.reusable for handle in self.handles[room].values())

    def abort(self, room: int, reason: str = "test") -> None:
        for handle in self.handles[room].values():
            handle.abort(reason)

    def wrong(self, room: int, indices: dict[str, list[int]]) -> list[str]:
        return [w for buffers in self.buffers.values() for w in buffers.wrong(room, indices)]

    def paint(self, indices: dict[str, list[int]], value: int) -> None:
        """Fill these items with a byte, as a new owner of the pages would."""
        for buffers in self.buffers.values():
            for (kind, _), array in zip(buffers.entries(), buffers.arrays, strict=True):
                array[indices[kind]] = value

    def painted(self, indices: dict[str, list[int]], value: int) -> bool:
        return all(
            bool((array[indices[kind]] == value).all())
            for buffers in self.buffers.values()
            for (kind, _), array in zip(buffers.entries(), buffers.arrays, strict=True)
        )

    def deregister(self) -> None:
        for fabric, buffers in zip(self.fabrics, self.buffers.values(), strict=True):
            for array in buffers.arrays:
                fabric.deregister(array.ctypes.data)

    def free_slots(self) -> list[int]:
        return [peer._driver.area.free for peer in self.peers.values()]

    def close_registry(self) -> None:
        assert self.registry is not None
        self.registry.close()

    def cpu(self) -> float:
        return time.process_time()

    def forget(self, room: int) -> None:
        self.handles.pop(room, None)

    def usage(self) -> dict[str, int]:
        gc.collect()
        peers = list(self.peers.values())
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
        return {
            "rss_mib": resident >> 20,
            "threads": threading.active_count(),
            "at_work": at_work(peer._driver.workers for peer in peers),
            "fds": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            "rooms": sum(rooms_of(peer)[0] for peer in peers),
            "kept": sum(rooms_of(peer)[1] for peer in peers),
        }

    def metrics(self) -> list[str]:
        return [peer.telemetry.exposition() for peer in self.peers.values()]

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()
        for fabric in self.fabrics:
            fabric.close()
        if self.registry is not None:
            self.registry.close()


def serve(pipe: Any, spec: Spec, host_class: type[Host]) -> None:
    """Main of the process."""
    os.environ.update({"MC_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", **spec.environment})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        host = host_class(spec)
    except Exception as error:  # noqa: BLE001  the other end raises it
        pipe.send(error)
        return
    pipe.send(None)
    while True:
        try:
            name, args = pipe.recv()
        except EOFError:
            break
        if name == "exit":
            break
        try:
            pipe.send((True, getattr(host, name)(*args)))
        except Exception as error:  # noqa: BLE001  the other end raises it
            pipe.send((False, error))
    host.close()
    pipe.send((True, None))
    os._exit(0)  # NIXL crashes an interpreter that exits by itself


class Process:
    """A process that serves a `Host`."""

    def __init__(self, spec: Spec, host: type[Host] = Host, context: Any = SPAWN) -> None:
        self.spec = spec
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, spec, host), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> "Process":
        assert self._pipe.poll(60), "the process did not start"
        error = self._pipe.recv()
        if error is not None:
            raise error
        return self

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def post(self, name: str, *args: Any) -> None:
        self._pipe.send((name, args))

    def result(self, timeout: float = 60.0) -> Any:
        assert self._pipe.poll(timeout), "no answer in time"
        ok, value = self._pipe.recv()
        if not ok:
            raise value
        return value

    def call(self, name: str, *args: Any, timeout: float = 60.0) -> Any:
        self.post(name, *args)
        return self.result(timeout)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(10)

    def close(self) -> None:
        """In order, or not at all."""
        if self._process.is_alive():
            try:
                self.call("exit", timeout=20)
            except (AssertionError, OSError, EOFError):
                pass
        self._process.join(5)
        self.kill()
        self._pipe.close()


def indices(seed: int, items: int, pages: int) -> dict[str, list[int]]:
    """Ids of one side: pages scattered, one slot, one row."""
    rng = np.random.default_rng(seed)
    page = rng.permutation(items)[:pages].tolist()
    return {
        "kv": page,
        "qsa_compressed": page,
        "mamba": [int(rng.integers(items))],
        "qsa_pending": [int(rng.integers(items))],
    }


@contextmanager
def pair(
    prefill: Spec, decode: Spec, host: type[Host] = Host, context: Any = SPAWN
) -> Iterator[tuple[Process, Process]]:
    """A prefill process with the registry, and a decode process. Killed at the end: closing Mooncake takes long."""
    processes = [Process(prefill, host, context), Process(decode, host, context)]
    try:
        yield processes[0].ready(), processes[1].ready()
    finally:
        for process in processes:
            process.kill()

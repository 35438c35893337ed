"""How fast state moves, as ratios on one machine: against one block a token, against equal TP, against the bare fabric.

Both sides are a process each, with one fabric a rank, over Mooncake on loopback. A request's time runs from `send` to
the receiver's confirmation; links stand before. The bare call gets finished lists and confirms nothing.
"""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pdctl_transfer.fabric.base import Blocks, Deadline
from pdctl_transfer.layout.algebra import item_len
from pdctl_transfer.layout.manifest import Component, Engine, Entry, Group, Manifest, Model, Parallel, Stage, Transfer
from pdctl_transfer.plan import RankId, bind
from pdctl_transfer.session import Options
from tests.bench.harness import Row, at_least, at_most, plain
from tests.integration.transfer.ranks import Host, Process, Spec, pair, rooms
from tests.unit.transfer_session.world import ranks

PAGE = 64
BATCH = 1024
HEADS = 8
HEAD_BYTES = 256
LAYERS = 4
PAGES = 128
OPTIONS = Options(bootstrap_s=30, transfer_s=60, silent_s=30)


def kv(role: str, tp: int, layers: int = LAYERS, head_bytes: int = HEAD_BYTES) -> Manifest:
    """K and V of GQA layers: 8 heads of 128 bfloat16; at TP 4 a token of a layer is 512 bytes, a page 32 KiB."""
    size = item_len(Entry(0, "k", "split", PAGE, (Group(HEADS, 1),), head_bytes, 0), tp)
    entries = tuple(
        Entry(layer, tensor, "split", PAGE, (Group(HEADS, 1),), head_bytes, size)
        for layer in range(layers)
        for tensor in ("k", "v")
    )
    return Manifest(
        role=role,  # type: ignore[arg-type]
        origin="live",
        engine=Engine("reference", "0"),
        model=Model("bench", "dense", "sha256:0"),
        transfer=Transfer("mooncake"),
        parallel=Parallel(tp),
        page_size=PAGE,
        kv_cache_dtype="bfloat16",
        kv_layout="nhd",
        speculative=None,
        stages=(Stage(0, (0, layers), (Component("kv", "page", entries),)),),
    )


class Bench(Host):
    """A side that measures."""

    def timed(self, room: int, ids: list[int]) -> tuple[float, float]:
        """Wall and CPU seconds from `send` to the last confirmation."""
        handles = [peer.open(room) for peer in self.peers.values()]
        self._settled(handles, "waiting")
        wall, cpu = time.perf_counter(), time.process_time()
        for handle in handles:
            handle.send({"kv": ids})
        for handle in handles:
            assert handle.wait(120) == "confirmed", handle.failure
        return time.perf_counter() - wall, time.process_time() - cpu

    def _settled(self, handles: list[Any], state: str) -> None:
        while any(handle.state != state for handle in handles):
            time.sleep(0.001)

    def bare(self, ids: list[int], theirs: list[int]) -> float:
        """Seconds of the fabric's own batch calls for the plan's blocks as they are: a thread a rank."""
        jobs = [job for rank, peer in self.peers.items() for job in self._blocks(rank, peer, ids, theirs)]
        threads = [threading.Thread(target=self._write, args=job) for job in jobs]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    def _blocks(self, rank: Any, peer: Any, ids: list[int], theirs: list[int]) -> list[Any]:
        jobs = []
        for link in peer._links:
            src, dst = RankId(rank.pp, rank.tp), RankId(link.hello.rank.pp, link.hello.rank.tp)
            plan = link.pair_plan.part(src, dst).plan
            blocks = bind(plan, peer.me.regions, link.hello.regions, {"kv": ids}, {"kv": theirs})
            lists = [tuple(c[at : at + BATCH].tolist() for c in blocks) for at in range(0, len(blocks.length), BATCH)]
            jobs.append((peer.me.fabric, peer.me.fabric.connect(link.hello.address).name, lists))
        return jobs

    @staticmethod
    def _write(fabric: Any, name: str, lists: list[Any]) -> None:
        for src, dst, length in lists:
            assert fabric._engine.batch_transfer_sync_write(name, src, dst, length) == 0

    def fabric_time(self, nbytes: int, block: int) -> float:
        """Seconds for so many bytes in blocks of this size, first to first region."""
        (peer,) = self.peers.values()
        (link,) = peer._links
        here, there = peer.me.regions[0], link.hello.regions[0]
        at = np.arange(0, here.items * here.item_len, block, dtype=np.int64)
        blocks = Blocks(here.base + at, there.base + at, np.full_like(at, block))
        start = time.perf_counter()
        done = 0
        while done < nbytes:
            assert peer.me.fabric.write(link.peer, blocks, Deadline(60)).ok
            done += len(at) * block
        return time.perf_counter() - start


class Side:
    """A pair of processes, and how to move a request between them."""

    def __init__(self, prefill: Process, decode: Process) -> None:
        self.prefill, self.decode = prefill, decode

    def move(self, ids: list[int], theirs: list[int]) -> tuple[float, float]:
        """Wall and CPU seconds of the sender."""
        room = next(rooms)
        self.decode.call("open", room, self.prefill.call("address"), {"kv": theirs})
        took: tuple[float, float] = self.prefill.call("timed", room, ids, timeout=180)
        assert {end[0] for end in self.decode.call("wait", room)} == {"confirmed"}
        self.decode.call("forget", room)
        return took

    def bare(self, ids: list[int], theirs: list[int]) -> float:
        """Seconds of the fabric's own calls."""
        seconds: float = self.prefill.call("bare", ids, theirs, timeout=180)
        return seconds

    def blocks(self, nbytes: int, block: int) -> float:
        """Seconds of so many bytes in equal blocks."""
        seconds: float = self.prefill.call("fabric_time", nbytes, block, timeout=180)
        return seconds


@contextmanager
def run(src: int, dst: int, pages: int = PAGES, layers: int = LAYERS, head_bytes: int = HEAD_BYTES) -> Iterator[Side]:
    """A pair whose links stand."""
    here, there = kv("prefill", src, layers, head_bytes), kv("decode", dst, layers, head_bytes)
    specs = [Spec(m, tuple(ranks(m)), options=OPTIONS, items=pages) for m in (here, there)]
    with pair(*specs, Bench) as (prefill, decode):
        side = Side(prefill, decode)
        side.move([0], [0])
        side.move(list(range(pages)), list(range(pages)))  # touches all memory once
        yield side


def ratio(first: Callable[[], float], second: Callable[[], float], repeat: int = 5) -> tuple[float, float]:
    """Medians of first/second and of second, measured in turn."""
    pairs = [(first(), second()) for _ in range(repeat)]
    return statistics.median(a / b for a, b in pairs), statistics.median(b for _, b in pairs)


def unequal(src: int, dst: int, equal: Side) -> Iterator[Row]:
    """Against the same bytes into the same receivers at equal TP, and against one block a token."""
    ids = list(range(PAGES))
    name = f"TP {src} → {dst}, 128 MiB, 32 a rank"
    with run(src, dst) as side:
        against_equal, equal_s = ratio(lambda: side.move(ids, ids)[0], lambda: equal.move(ids, ids)[0])
        ours = against_equal * equal_s
        token = statistics.median(side.bare(ids, ids) for _ in range(3))
    yield plain(name, ours * 1e3, "ms")
    yield at_least(f"{name}: faster than one block a token, batches of 1,024", token / ours, "×", 20)
    yield at_most(f"{name}: time against the same bytes at TP {dst} → {dst}", against_equal, "×", 1.5)


def equal_tp(side: Side) -> Iterator[Row]:
    """Against the bare call on the same merged block list."""
    straight = list(range(PAGES))
    rng = np.random.default_rng(0)
    for name, ids in (("consecutive", straight), ("random", rng.permutation(PAGES).tolist())):
        speed, ours = ratio(lambda ids=ids: side.bare(ids, straight), lambda ids=ids: side.move(ids, straight)[0], 15)  # type: ignore[misc]
        yield at_least(f"TP 1 → 1, 128 MiB, {name} pages: speed against the bare call", speed, "×", 0.9)
        best = min(side.blocks(128 << 20, block) for block in (1 << 20, 4 << 20, 16 << 20))
        yield plain(f"TP 1 → 1, 128 MiB, {name} pages: speed against the best block size", best / ours, "×")


def curve() -> Iterator[Row]:
    """The sender's CPU for a request; 256 bytes a token and entry, so that what is not wire shows."""

    def cpu(side: Side, pages: int) -> float:
        ids = list(range(pages))
        return min(side.move(ids, ids)[1] for _ in range(3)) * 1e3

    with run(1, 1, 512, LAYERS, 32) as side:
        for pages in (64, 128, 256, 512):
            yield plain(f"sender CPU, {pages * PAGE >> 10}k tokens, {LAYERS} layers, TP 1 → 1", cpu(side, pages), "ms")
    for layers in (8, 16):
        with run(1, 1, 128, layers, 32) as side:
            yield plain(f"sender CPU, 8k tokens, {layers} layers, TP 1 → 1", cpu(side, 128), "ms")
    for dst in (2, 4):
        with run(1, dst, 128, LAYERS, 32) as side:
            yield plain(f"sender CPU, 8k tokens, {LAYERS} layers, TP 1 → {dst}", cpu(side, 128), "ms")


def rows() -> Iterator[Row]:
    with run(4, 4) as equal:
        yield from unequal(1, 4, equal)
    with run(1, 1) as equal:
        yield from unequal(4, 1, equal)
        yield from equal_tp(equal)
    yield from curve()

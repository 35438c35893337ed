"""How fast state moves, as ratios on one machine: against one block a token, against equal TP, against the bare fabric.

Both sides are a process each, with one fabric a rank, over Mooncake on loopback. A request's time runs from `send` to
the receiver's confirmation; links stand before. The bare call gets finished lists and confirms nothing.
"""

import statistics
import threading
import time
from collections.abc import Iterator

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
HEADS, HEAD_BYTES = 8, 256
LAYERS = 4
PAGES = 128
OPTIONS = Options(bootstrap_s=30, transfer_s=60, silent_s=30)


def kv(role: str, tp: int, layers: int = LAYERS) -> Manifest:
    """K and V of GQA layers: 8 heads of 128 bfloat16; at TP 4 a token of a layer is 512 bytes, a page 32 KiB."""
    made = Entry(0, "k", "split", PAGE, (Group(HEADS, 1),), HEAD_BYTES, 0)
    size = item_len(made, tp)
    entries = tuple(
        Entry(layer, tensor, "split", PAGE, (Group(HEADS, 1),), HEAD_BYTES, size)
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

    def _settled(self, handles: list, state: str) -> None:
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

    def _blocks(self, rank, peer, ids, theirs) -> list:
        jobs = []
        for link in peer._links:
            src, dst = RankId(rank.pp, rank.tp), RankId(link.hello.rank.pp, link.hello.rank.tp)
            plan = link.pair_plan.part(src, dst).plan
            blocks = bind(plan, peer.me.regions, link.hello.regions, {"kv": ids}, {"kv": theirs})
            lists = [tuple(c[at : at + BATCH].tolist() for c in blocks) for at in range(0, len(blocks.length), BATCH)]
            jobs.append((peer.me.fabric, peer.me.fabric.connect(link.hello.address).name, lists))
        return jobs

    @staticmethod
    def _write(fabric, name: str, lists: list) -> None:
        for src, dst, length in lists:
            assert fabric._engine.batch_transfer_sync_write(name, src, dst, length) == 0

    def fabric_time(self, nbytes: int, block: int) -> float:
        """Seconds for so many bytes in blocks of this size, first to first region."""
        ((rank, peer),) = self.peers.items()
        (link,) = peer._links
        here, there = peer.me.regions[0], link.hello.regions[0]
        at = np.arange(0, min(nbytes, here.items * here.item_len), block, dtype=np.int64)
        blocks = Blocks(here.base + at, there.base + at, np.full_like(at, block))
        start = time.perf_counter()
        done = 0
        while done < nbytes:
            assert peer.me.fabric.write(link.peer, blocks, Deadline(60)).ok
            done += len(at) * block
        return time.perf_counter() - start


class Side:
    """A pair of processes and how to move a request between them."""

    def __init__(self, prefill: Process, decode: Process) -> None:
        self.prefill, self.decode = prefill, decode

    def move(self, ids: list[int], theirs: list[int]) -> tuple[float, float]:
        room = next(rooms)
        self.decode.call("open", room, self.prefill.call("address"), {"kv": theirs})
        took = self.prefill.call("timed", room, ids, timeout=180)
        assert self.decode.call("wait", room)[0][0] == "confirmed"
        self.decode.call("forget", room)
        return took

    def bare(self, ids: list[int], theirs: list[int]) -> float:
        seconds: float = self.prefill.call("bare", ids, theirs, timeout=180)
        return seconds


def run(src: int, dst: int, pages: int = PAGES, layers: int = LAYERS):
    here, there = kv("prefill", src, layers), kv("decode", dst, layers)
    return pair(
        Spec(here, tuple(ranks(here)), options=OPTIONS, items=pages),
        Spec(there, tuple(ranks(there)), options=OPTIONS, items=pages),
        Bench,
    )


def median(function, repeat: int = 5) -> float:
    return statistics.median(function() for _ in range(repeat))


def rows() -> Iterator[Row]:
    ids = list(range(PAGES))
    with run(4, 4) as processes:
        side = Side(*processes)
        side.move(ids, ids)
        equal = median(lambda: side.move(ids, ids)[0])
        yield plain("TP 4 → 4, 128 MiB, consecutive pages", equal * 1e3, "ms")
    for src, dst in ((4, 1), (1, 4)):
        with run(src, dst) as processes:
            side = Side(*processes)
            side.move(ids, ids)
            ours = median(lambda: side.move(ids, ids)[0])
            token = median(lambda: side.bare(ids, ids), 3)
        name = f"TP {src} → {dst}, 128 MiB"
        yield plain(f"{name}", ours * 1e3, "ms")
        yield at_least(f"{name}: faster than one block a token, batches of 1,024", token / ours, "×", 20)
        yield at_most(f"{name}: time against the same bytes at equal TP", ours / equal, "×", 1.5)

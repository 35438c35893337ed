"""Ranks whose requests are gigabytes long, so that a test can act in the middle of one that real Mooncake moves.

Processes come from a fork server that has imported what they need: a dozen of them start in a second or two.
"""

import ctypes
import math
import multiprocessing as mp
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from pdctl_transfer.layout.manifest import Component, Manifest, Stage
from pdctl_transfer.session import Options
from tests.integration.transfer.aliased import Aliased
from tests.integration.transfer.gauges import gauge
from tests.integration.transfer.ranks import Host, Process, Spec, rooms
from tests.integration.transfer.ranks import pair as any_pair
from tests.integration.transfer.sockets import Break, break_connections, control_ports
from tests.unit.transfer_session.world import Buffers, entry, manifest, ranks

FORKS = mp.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])
OPTIONS = Options(bootstrap_s=20, waiting_s=20, transfer_s=40, heartbeat_s=0.2, silent_s=6, linger_s=0.2)
HEADS, TOKENS, HEAD_BYTES = 8, 64, 256
RUN = 512
"""Pages that follow each other on both sides: 64 MiB an entry at TP 1, more than any socket holds."""
PERIOD = 32 << 20
STATE, OWNER = 0x77, 0x55
"""What a request moves, and what the next owner of its pages paints them with."""
GIB = 1 << 30


def wide(role: str, tp: int = 1) -> Manifest:
    """K and V of one layer: a page is 256 KiB in all."""
    kv = tuple(entry(0, tensor, ((HEADS, 1),), TOKENS, HEAD_BYTES, tp) for tensor in ("k", "v"))
    return replace(manifest(role, tp), stages=(Stage(0, (0, 1), (Component("kv", "page", kv),)),))


def pages_of(nbytes: int) -> int:
    """Pages that a request of so many bytes has, in whole runs."""
    return nbytes // (2 * HEADS * TOKENS * HEAD_BYTES) // RUN * RUN


def ids(pages: int, *, turned: bool = False) -> dict[str, list[int]]:
    """So many pages; `turned`: in runs from the last to the first, so that a block is a run and not the whole."""
    runs = [range(at, min(pages, at + RUN)) for at in range(0, pages, RUN)]
    return {"kv": [page for run in (reversed(runs) if turned else runs) for page in run]}


@dataclass
class WideBuffers(Buffers):
    """Each entry is made of one small piece of memory again and again."""

    pieces: list[Aliased] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pieces = [Aliased(self.items * e.item_len, PERIOD // e.item_len * e.item_len) for _, e in self.entries()]
        self.arrays = [piece.array(e.item_len) for piece, (_, e) in zip(self.pieces, self.entries(), strict=True)]


class Wide(Host):
    """A side with such buffers, and what can befall it."""

    buffers_class = WideBuffers

    def paint_all(self, value: int) -> None:
        """Fill everything, as a new owner of all pages would."""
        for piece in self._pieces():
            piece.period[:] = value

    def differing(self, value: int) -> int:
        """Bytes that are not this; a byte that stands for many counts once."""
        return sum(int((piece.period != value).sum()) for piece in self._pieces())

    def reuse(self, room: int, within_s: float, watch_s: float) -> tuple[float, int, int]:
        """Wait until the room's pages are reusable, give them to a new owner at once, and watch what becomes of them.

        Returns the seconds until they were reusable (-1: never), bytes that were not the request's when it was
        confirmed, and the most bytes of the new owner that were ever seen overwritten.
        """
        began = time.monotonic()
        if not self.wait_reusable(room, within_s):
            return -1.0, 0, 0
        took = time.monotonic() - began
        confirmed = all(handle.state == "confirmed" for handle in self.handles[room].values())
        wrong = self.differing(STATE) if confirmed else 0
        self.paint_all(OWNER)
        return took, wrong, self.watch(watch_s)

    def watch(self, seconds: float) -> int:
        """The most bytes of the new owner that are seen overwritten in this time."""
        end = time.monotonic() + seconds
        worst = 0
        while time.monotonic() < end and not worst:
            time.sleep(0.2)
            worst = self.differing(OWNER)
        return worst

    def control_ports(self) -> set[int]:
        """Where the core listens."""
        return control_ports()

    def break_connections(self, how: Break, ports: set[int]) -> int:
        """This side's ends of connections to or from these ports."""
        return break_connections(how, ports)

    def close_until_free(self, within_s: float) -> bool:
        """Close the peers, and again as long as memory may not be freed. False where it never may."""
        end = time.monotonic() + within_s
        drain_s = 0.2
        while True:
            free = [peer.close(drain_s=drain_s) for peer in self.peers.values()]
            if all(free) or time.monotonic() > end:
                return all(free)
            drain_s = 1.0

    def close_and_reuse(self, within_s: float, watch_s: float) -> int:
        """The same, and at once the memory has a new owner; the most of his bytes that were seen overwritten, or -1."""
        if not self.close_until_free(within_s):
            return -1
        self.paint_all(OWNER)
        return self.watch(watch_s)

    def gauge(self, name: str) -> list[float]:
        """Of each rank."""
        return [gauge(peer.telemetry.exposition(), name) for peer in self.peers.values()]

    def ways(self) -> set[str]:
        """How bytes have travelled from here."""
        return {way for way in ("direct", "packed", "staged") for text in self.metrics() if f'way="{way}"' in text}

    def resume(self, room: int, indices: dict[str, list[int]]) -> None:
        """Send what was only opened."""
        for handle in self.handles[room].values():
            handle.send(indices, b"m")

    def timed(self, numbers: list[int], indices: dict[str, list[int]], gap_s: float) -> list[float]:
        """Send these rooms one every `gap_s` seconds, whatever becomes of them; seconds until each was confirmed."""
        ended: dict[int, float] = {}
        began: dict[int, float] = {}
        (peer,) = self.peers.values()
        handles = [peer.open(room) for room in numbers]
        for handle in handles:
            handle.when_over(lambda room=handle.room: ended.setdefault(room, time.monotonic()))
        for handle in handles:
            began[handle.room] = time.monotonic()
            handle.send(indices, b"m")
            time.sleep(gap_s)
        well = {handle.room: handle.wait(30) == "confirmed" for handle in handles}
        return [ended[room] - began[room] if well[room] else math.inf for room in numbers]

    def hold_interpreter(self, seconds: float) -> None:
        """Hold the GIL, as a long call of an engine into C does that does not let go of it."""
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))

    def _pieces(self) -> Iterator[Aliased]:
        for buffers in self.buffers.values():
            assert isinstance(buffers, WideBuffers)
            yield from buffers.pieces


def spec(role: str, tp: int = 1, pages: int = RUN, options: Options = OPTIONS) -> Spec:
    """All ranks of one side in a process."""
    made = wide(role, tp)
    return Spec(made, tuple(ranks(made)), options=options, items=pages)


def start(role: str, tp: int = 1, pages: int = RUN, options: Options = OPTIONS) -> Process:
    """One more process; it is not waited for."""
    return Process(spec(role, tp, pages, options), Wide, FORKS)


@contextmanager
def pair(
    prefill_tp: int = 1, decode_tp: int = 1, pages: int = RUN, options: Options = OPTIONS
) -> Iterator[tuple[Process, Process]]:
    """Two processes that have served a first request."""
    sides = spec("prefill", prefill_tp, pages, options), spec("decode", decode_tp, pages, options)
    with any_pair(*sides, Wide, FORKS) as (prefill, decode):
        prefill.call("paint_all", STATE)
        serve(prefill, decode)
        yield prefill, decode


def ask(prefill: Process, decode: Process, pages: int = 1) -> int:
    """A room in which the state of so many pages is on its way."""
    room = next(rooms)
    decode.call("open", room, prefill.call("address"), ids(pages, turned=True))
    prefill.call("send", room, ids(pages), b"m", False)
    return room


def serve(prefill: Process, decode: Process, pages: int = 1, within_s: float = 20.0) -> None:
    """A request goes through."""
    room = ask(prefill, decode, pages)
    ends = decode.call("wait", room, within_s) + prefill.call("wait", room, within_s)
    assert {end[0] for end in ends} == {"confirmed"}, ends
    assert decode.call("wait_reusable", room, 5.0)

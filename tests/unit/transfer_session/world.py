"""A small hybrid model's state, cut over ranks by an oracle of its own: whole items sliced by unit, without a plan."""

import itertools
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pdctl_transfer.fabric.memory import MemoryFabric
from pdctl_transfer.layout.algebra import item_len, local_heads, total_units
from pdctl_transfer.layout.manifest import Component, Engine, Entry, Group, Manifest, Model, Parallel, Stage, Transfer
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, Region, Registry
from pdctl_transfer.session.bytes.copier import Copier

PAGE = 16
rooms = itertools.count(1)


def threads_left(within_s: float = 5.0) -> list[str]:
    """Names of the core's threads that do not end in time."""
    end = time.monotonic() + within_s
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("pdctl")]
    for thread in ours:
        thread.join(max(0.0, end - time.monotonic()))
    return [thread.name for thread in ours if thread.is_alive()]


def entry(
    layer: int, tensor: str, groups: tuple[tuple[int, int], ...], outer: int, inner: int, tp: int, **more: Any
) -> Entry:
    made = Entry(layer, tensor, more.get("sharding", "split"), outer, tuple(Group(*g) for g in groups), inner, 0)
    return Entry(*(getattr(made, f) for f in made.__struct_fields__[:6]), item_len=item_len(made, tp))


def components(layers: range, tp: int, scale: int) -> tuple[Component, ...]:
    """Odd layers hold K and V, even ones recurrent state; one ring and one compressed page in the upper half."""
    kv, mamba, ring, compressed = [], [], [], []
    for layer in layers:
        if layer % 2:
            kv += [entry(layer, t, ((2, 1),), PAGE, 8 * scale, tp) for t in ("k", "v")]
        else:
            mamba.append(entry(layer, "conv", ((4, 3), (4, 3), (8, 2)), 1, 6, tp))
            mamba.append(entry(layer, "temporal", ((8, 1),), 1, 32 * scale, tp))
        if layer >= 4:
            ring.append(entry(layer, "pending_k", ((1, 1),), 16, 8, tp, sharding="replicated"))
            compressed.append(entry(layer, "compressed_k", ((1, 1),), 1, 16, tp, sharding="replicated"))
    made = [
        Component("kv", "page", tuple(kv)),
        Component("mamba", "slot", tuple(mamba)),
        Component("qsa_pending", "row", tuple(ring)),
        Component("qsa_compressed", "page", tuple(compressed)),
    ]
    return tuple(made)


def manifest(role: str, tp: int, pp: int = 1, dp: int = 1, layers: int = 8, scale: int = 1, **more: Any) -> Manifest:
    cut = [layers * i // pp for i in range(pp + 1)]
    stages = tuple(Stage(p, (cut[p], cut[p + 1]), components(range(cut[p], cut[p + 1]), tp, scale)) for p in range(pp))
    return Manifest(
        role=role,  # type: ignore[arg-type]
        origin="live",
        engine=Engine("reference", "0"),
        model=Model("tiny", "tiny", more.get("model", "sha256:0")),
        transfer=Transfer("mooncake"),
        parallel=Parallel(tp, 1, pp, dp),
        page_size=more.get("page_size", PAGE),
        kv_cache_dtype="bfloat16",
        kv_layout="nhd",
        speculative=None,
        stages=stages,
    )


def local_units(e: Entry, tp: int, rank: int) -> np.ndarray:
    """Global unit numbers that a rank holds, in its own order: straight from the manifest contract."""
    if e.sharding == "replicated":
        return np.arange(total_units(e))
    found, base = [], 0
    for group in e.groups:
        heads = local_heads(group, tp, rank)
        found += [base + head * group.width + np.arange(group.width) for head in heads]
        base += group.heads * group.width
    return np.concatenate(found)


@dataclass
class Buffers:
    """One rank's memory: an array [items, item_len] an entry, which begins at an odd address where there is a `shift`,
    and whose items are apart where there is a `gap`."""

    manifest: Manifest
    rank: Rank
    items: int
    arrays: list[np.ndarray] = field(default_factory=list)
    shift: ClassVar[int] = 0
    gap: ClassVar[int] = 0

    def __post_init__(self) -> None:
        self.whole = [
            np.full(self.shift + self.items * (e.item_len + self.gap), 0xEE, np.uint8) for _, e in self.entries()
        ]
        self.arrays = [
            whole[self.shift :].reshape(self.items, e.item_len + self.gap)[:, : e.item_len]
            for whole, (_, e) in zip(self.whole, self.entries(), strict=True)
        ]

    def entries(self) -> list[tuple[str, Entry]]:
        stage = next(s for s in self.manifest.stages if s.pp_rank == self.rank.pp)
        return [(c.kind, e) for c in stage.components for e in c.entries]

    def regions(self) -> list[Region]:
        return [Region(a.ctypes.data, len(a), a.shape[1], stride=self.gap and a.strides[0]) for a in self.arrays]

    def slice_of(self, room: int, kind: str, e: Entry, count: int) -> np.ndarray:
        """What `count` items of this room hold on this rank: bytes [count, item_len]."""
        seed = zlib.crc32(f"{room} {kind} {e.layer} {e.tensor}".encode())
        whole = np.random.default_rng(seed).integers(0, 256, (count, e.outer, total_units(e), e.inner_bytes), np.uint8)
        mine = local_units(e, self.manifest.parallel.attn_tp, self.rank.tp)
        return whole[:, :, mine, :].reshape(count, e.item_len)

    def fill(self, room: int, indices: dict[str, list[int]]) -> None:
        for (kind, e), array in zip(self.entries(), self.arrays, strict=True):
            array[indices[kind]] = self.slice_of(room, kind, e, len(indices[kind]))

    def wrong(self, room: int, indices: dict[str, list[int]]) -> list[str]:
        """Entries whose items are not what the room holds."""
        bad = []
        for (kind, e), array in zip(self.entries(), self.arrays, strict=True):
            if not np.array_equal(array[indices[kind]], self.slice_of(room, kind, e, len(indices[kind]))):
                bad.append(f"{kind} {e.layer} {e.tensor}")
        return bad

    def gaps_untouched(self) -> bool:
        """Whether nothing was written between the items."""
        rows = [whole[self.shift :].reshape(self.items, -1) for whole in self.whole if whole.nbytes > self.shift]
        lengths = [e.item_len for _, e in self.entries() if e.item_len + self.gap]
        return all((row[:, length:] == 0xEE).all() for row, length in zip(rows, lengths, strict=True))

    def untouched(self, indices: dict[str, list[int]]) -> bool:
        """Whether every item outside of the indices is as it was."""
        for (kind, _), array in zip(self.entries(), self.arrays, strict=True):
            rest = np.delete(array, indices[kind], axis=0)
            if not (rest == 0xEE).all():
                return False
        return True


def indices(rng: np.random.Generator, items: int, pages: int) -> dict[str, list[int]]:
    def pick(n: int) -> list[int]:
        return rng.permutation(items)[:n].tolist()

    return {"kv": (p := pick(pages)), "qsa_compressed": p, "mamba": pick(1), "qsa_pending": pick(1)}


def spaced(shift: int = 0, gap: int = 0) -> type[Buffers]:
    """Memory that begins so many bytes after an even address, and has so many between its items."""
    return type("Spaced", (Buffers,), {"shift": shift, "gap": gap})


class World:
    """A registry, all ranks of both sides, each with its own memory and fabric."""

    def __init__(
        self,
        prefill: Manifest,
        decode: Manifest,
        options: Options | None = None,
        fabric: Any = MemoryFabric,
        items: int = 64,
        memory: "type[Buffers] | None" = None,
        copier: Callable[["Buffers"], Copier | None] = lambda buffers: None,
    ) -> None:
        self.stack = ExitStack()
        self.options = options or FAST
        self.registry = Registry(secret=self.options.secret)
        self.stack.callback(self.registry.close)
        self.at = ("127.0.0.1", self.registry.port)
        self.items = items
        self.fabrics: list[Any] = []
        self.prefill: dict[Rank, tuple[PrefillPeer, Buffers]] = {}
        self.decode: dict[Rank, tuple[DecodePeer, Buffers]] = {}
        for m, made in ((prefill, self.prefill), (decode, self.decode)):
            for rank in ranks(m):
                buffers = (memory or Buffers)(m, rank, items)
                more = {"options": self.options, "copier": copier(buffers)}
                f = fabric()
                self.fabrics.append(f)
                self.stack.callback(f.close)
                for region in buffers.regions():
                    f.register(region.base, region.nbytes, region.where)
                if m.role == "prefill":
                    peer: Any = PrefillPeer(m, rank, buffers.regions(), f, registry=self.at, **more)
                else:
                    peer = DecodePeer(m, rank, buffers.regions(), f, **more)
                self.stack.callback(peer.close)
                made[rank] = (peer, buffers)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stack.close()
        if exc[0] is None:
            assert not (left := threads_left()), f"closed, and still there: {left}"

    def transfer(self, pages: int = 5, seed: int = 0, dp: int = 0) -> tuple[list[Any], list[Any], Any]:
        """Move one room; handles of both sides, and a function that names what arrived wrong."""
        rng = np.random.default_rng(seed)
        room = next(rooms)
        here = {rank: indices(rng, self.items, pages) for rank in self.prefill}
        there = {rank: indices(rng, self.items, pages) for rank in self.decode}
        senders = []
        for rank, (peer, buffers) in self.prefill.items():
            if rank.dp != dp:
                continue
            buffers.fill(room, here[rank])
            handle = peer.open(room)
            handle.send(here[rank], b"meta")
            senders.append(handle)
        receivers = [peer.open(room, self.at, there[rank]) for rank, (peer, _) in self.decode.items()]

        def wrong() -> list[str]:
            return [w for rank, (_, b) in self.decode.items() for w in b.wrong(room, there[rank])]

        return senders, receivers, wrong


def ranks(m: Manifest) -> Iterator[Rank]:
    for d in range(m.parallel.dp):
        for stage in m.stages:
            for t in range(m.parallel.attn_tp):
                yield Rank(stage.pp_rank, t, d)


FAST = Options(handshake_s=3, bootstrap_s=5, waiting_s=5, transfer_s=5, heartbeat_s=0.1, silent_s=2, linger_s=0.1)

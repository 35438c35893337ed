"""Two processes on one machine that move a request's KV from prefill to decode by the core, in a device's memory: what
`gpu_check.py` times end to end."""

import math
import multiprocessing
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.mooncake import MooncakeFabric
from pdctl_transfer.fabric.nixl import NixlFabric
from pdctl_transfer.layout.algebra import item_len
from pdctl_transfer.layout.manifest import Component, Engine, Entry, Group, Manifest, Model, Parallel, Stage, Transfer
from pdctl_transfer.region import Region
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, Registry
from pdctl_transfer.session.bytes.tensors import place, torch_copier
from pdctl_transfer.session.bytes.torch_copier import TorchCopier

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["prefill", "decode"]
HEADS: Final = 8
HEAD_BYTES: Final = 256
PAGE: Final = 64
WAIT_S: Final = 60.0
OPTIONS: Final = Options(bootstrap_s=WAIT_S, transfer_s=WAIT_S)


class Size(NamedTuple):
    """Layers, pages of a request, pages of a pool."""

    layers: int
    pages: int
    items: int

    @property
    def nbytes(self) -> int:
        """Bytes of a request's KV, all heads."""
        return 2 * self.layers * self.pages * PAGE * HEADS * HEAD_BYTES


def manifest(role: Role, tp: int, layers: int) -> Manifest:
    """A dense model with eight KV heads of 128 bfloat16, in pages of 64 tokens."""
    entries = []
    for tensor in ("k", "v"):
        for layer in range(layers):
            made = Entry(layer, tensor, "split", PAGE, (Group(HEADS, 1),), HEAD_BYTES, 0)
            entries.append(Entry(layer, tensor, "split", PAGE, made.groups, HEAD_BYTES, item_len(made, tp)))
    stage = Stage(0, (0, layers), (Component("kv", "page", tuple(entries)),))
    return Manifest(
        role=role,
        origin="live",
        engine=Engine("reference", "0"),
        model=Model("gpu-check", "dense", "sha256:0"),
        transfer=Transfer("mooncake"),
        parallel=Parallel(tp, 1, 1, 1),
        page_size=PAGE,
        kv_cache_dtype="bfloat16",
        kv_layout="nhd",
        speculative=None,
        stages=(stage,),
    )


class Pool:
    """One rank's KV: a tensor of bytes [items][item_len] for each entry, and the copier that works on them."""

    def __init__(self, role: Role, tp: int, rank: int, device: str, size: Size) -> None:
        import torch

        self.manifest, self._tp, self._rank, self._size = manifest(role, tp, size.layers), tp, rank, size
        self.where = place(device)
        self._entries = self.manifest.stages[0].components[0].entries
        self.tensors = [
            torch.full((size.items, entry.item_len), 0xEE, dtype=torch.uint8, device=device) for entry in self._entries
        ]
        regions = [Region(tensor.data_ptr(), size.items, tensor.shape[1], where=self.where) for tensor in self.tensors]
        self.copier: TorchCopier = torch_copier(self.tensors, regions)

    def content(self, number: int) -> "Tensor":
        """What an entry of a request holds on this rank, the same on every device: [pages][item_len]."""
        import torch

        shape = self._size.pages, PAGE, HEADS, HEAD_BYTES
        places = torch.arange(math.prod(shape), device=self.where, dtype=torch.int64)
        whole = ((places * 2654435761 + number * 40503) >> 13 & 0xFF).to(torch.uint8).reshape(shape)
        share = HEADS // self._tp
        return whole[:, :, self._rank * share : (self._rank + 1) * share].reshape(self._size.pages, -1)

    def fill(self, ids: list[int]) -> None:
        """Put the request there, as an engine's step does: it may go on when this returns, the copier waits for it."""
        for number, tensor in enumerate(self.tensors):
            tensor[ids] = self.content(number)
        self._stepped()

    def paint(self) -> None:
        """As it was, when this returns."""
        for tensor in self.tensors:
            tensor.fill_(0xEE)
        self._stepped()
        self.copier.done()

    def _stepped(self) -> None:
        import torch

        if self.tensors[0].is_cuda:
            event = torch.cuda.Event()
            event.record()
            self.copier.after(event)

    def wrong(self, ids: list[int]) -> int:
        """How many entries do not hold the request there, or hold anything else than paint beside it."""
        import torch

        rest = sorted(set(range(self._size.items)) - set(ids))
        return sum(
            not (torch.equal(tensor[ids], self.content(number)) and bool((tensor[rest] == 0xEE).all()))
            for number, tensor in enumerate(self.tensors)
        )


def ids_of(role: Role, size: Size) -> list[int]:
    """Scattered, and others on each side."""
    import random

    return random.Random(role).sample(range(size.items), size.pages)


class Pair(NamedTuple):
    """What is moved: by which fabric, from which TP to which, on which device, how much."""

    fabric: str
    prefill_tp: int
    decode_tp: int
    device: str
    size: Size


class Moved(NamedTuple):
    """What came of it. wrong: entries; seconds: of one request, median; ways and transports that were seen."""

    wrong: int
    seconds: float
    ways: str
    transport: str


@contextmanager
def ranks(role: Role, pair: Pair, at: tuple[str, int]) -> Iterator[list[tuple[Any, Pool, Any]]]:
    """Peers, pools and fabrics of one side, all in this process."""
    tp = pair.prefill_tp if role == "prefill" else pair.decode_tp
    with ExitStack() as stack:
        made = []
        for rank in range(tp):
            pool = Pool(role, tp, rank, pair.device, pair.size)
            fabric: Any = stack.enter_context(closing(MooncakeFabric() if pair.fabric == "mooncake" else NixlFabric()))
            for region in pool.copier.regions:
                fabric.register(region.base, region.nbytes, region.where)
            held = pool.manifest, Rank(0, rank), pool.copier.regions, fabric
            if role == "prefill":
                peer: Any = PrefillPeer(*held, registry=at, options=OPTIONS, copier=pool.copier)
            else:
                peer = DecodePeer(*held, OPTIONS, copier=pool.copier)
            made.append((stack.enter_context(closing(peer)), pool, fabric))
        yield made


def serve(pipe: Connection) -> None:
    """The other process: prefill of each pair that it is told of, until it is told none. Words mean a failure."""
    while (pair := pipe.recv()) is not None:
        try:
            prefill(pipe, pair)
        except (RuntimeError, TransferError) as error:
            pipe.send(str(error))


def prefill(pipe: Connection, pair: Pair) -> None:
    """Send each room that it is told of, until it is told none."""
    with closing(Registry()) as registry:
        at = ("127.0.0.1", registry.port)
        with ranks("prefill", pair, at) as made:
            ids = ids_of("prefill", pair.size)
            for _, pool, _ in made:
                pool.fill(ids)
            pipe.send(at)
            while (room := pipe.recv()) is not None:
                handles = [peer.open(room) for peer, _, _ in made]
                for handle in handles:
                    handle.send({"kv": ids}, b"first token")
                pipe.send([handle.wait(WAIT_S) for handle in handles])
            ways = {way for peer, _, _ in made for way in re.findall(r'way="(\w+)"', peer.telemetry.exposition())}
            pipe.send((sorted(ways), sorted({fabric.observed_transport() for *_, fabric in made})))


class Other:
    """The other process, started when it is needed, and anew after a failure."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None

    def move(self, pair: Pair, rooms: int) -> Moved:
        """Move a request so often, and compare every byte each time. Raises RuntimeError with a failure's words."""
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(pair)
            at = heard(self._pipe)
            with ranks("decode", pair, at) as made:
                return _moved(rooms, at, ids_of("decode", pair.size), made, self._pipe)
        except (EOFError, OSError) as error:
            raise self._failed(f"the prefill process ended: {error}") from error
        except (RuntimeError, TransferError) as error:
            raise self._failed(str(error)) from error

    def _failed(self, cause: str) -> RuntimeError:
        self._process.kill()
        self.close()
        return RuntimeError(cause)

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.is_alive():
            self._pipe.send(None)
        process.join(10)
        process.kill()
        self._pipe.close()


def heard(pipe: Connection) -> Any:
    """What the other process says. RuntimeError with its words where it failed."""
    said = pipe.recv()
    if isinstance(said, str):
        raise RuntimeError(f"prefill: {said}")
    return said


def _moved(
    rooms: int, at: tuple[str, int], ids: list[int], made: list[tuple[Any, Pool, Any]], pipe: Connection
) -> Moved:
    seconds, wrong = [], 0
    for room in range(1, rooms + 1):
        for _, pool, _ in made:
            pool.paint()
        began = time.monotonic()
        handles = [peer.open(room, at, {"kv": ids}) for peer, _, _ in made]
        pipe.send(room)
        ended = [handle.wait(WAIT_S) for handle in handles]
        seconds.append(time.monotonic() - began)
        if set(ended) | set(heard(pipe)) != {"confirmed"}:
            failure = next((handle.failure for handle in handles if handle.failure), None)
            raise RuntimeError(f"{failure.code} ({failure.side}) {failure.cause}" if failure else "not confirmed")
        wrong += sum(pool.wrong(ids) for _, pool, _ in made)
    pipe.send(None)
    ways, transports = heard(pipe)
    return Moved(wrong, statistics.median(seconds), ", ".join(ways), ", ".join(transports))

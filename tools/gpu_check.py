"""Whether the core moves state on this machine's GPU, and how fast: `python tools/gpu_check.py`.

One table, in ten minutes at most: bytes and sums equal numpy's; bandwidth of gathering and scattering beside the copy
engine's; how much of it hides behind a matmul; requests from TP 1 to 2 and from 2 to 1 over Mooncake and NIXL, between
two processes. Needs torch with CUDA and a fabric, and of pdctl the core alone. `--device cpu` runs all of it in a small
size without a GPU, which shows that the script works and nothing else. Exit status: 0 all right, 3 something is wrong,
1 what it needs is missing.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import gpu_pair
import numpy as np
from gpu_pair import HEAD_BYTES, HEADS, PAGE, Pair, Pool, Size, manifest

from pdctl_transfer.errors import FabricError, TransferError
from pdctl_transfer.plan import RankId
from pdctl_transfer.session.bytes.copier import NumpyCopier
from pdctl_transfer.session.bytes.copying import Buffer, Lot
from pdctl_transfer.session.bytes.packing import Chunk, chunk_bytes, chunks
from pdctl_transfer.session.bytes.work import PairPlan, Part

SIZES: Final = {"cuda": Size(32, 64, 256), "cpu": Size(2, 4, 8)}
CHUNK: Final = {"cuda": 64 << 20, "cpu": 1 << 20}
ROUNDS: Final = 7
TPS: Final = ((1, 2), (2, 1))
FABRICS: Final = ("mooncake", "nixl")


class Row(NamedTuple):
    """A line of the table. ok: None where there is nothing to judge."""

    what: str
    value: str
    ok: bool | None = None


class Machine:
    """A device, and what differs on it from the CPU."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch: Any = torch
        self.device, self.kind = device, torch.device(device).type
        self.size, self.chunk = SIZES[self.kind], CHUNK[self.kind]

    def wait(self) -> None:
        """Until the device has done all that it was asked for."""
        if self.kind == "cuda":
            self.torch.cuda.synchronize(self.device)

    def seconds(self, do: Callable[[], object]) -> float:
        """Median time of a call, to its end on the device."""
        found = []
        for _ in range(ROUNDS + 1):
            self.wait()
            began = time.perf_counter()
            do()
            self.wait()
            found.append(time.perf_counter() - began)
        return statistics.median(found[1:])

    def said(self) -> Row:
        """Which it is."""
        torch = self.torch
        name = torch.cuda.get_device_name(self.device) if self.kind == "cuda" else "the CPU: shows nothing of a GPU"
        return Row("device", f"{self.device}, {name}; torch {torch.__version__}, CUDA {torch.version.cuda}")


class Work(NamedTuple):
    """One rank's pool and what it gathers into a chunk, or puts into place out of it."""

    pool: Pool
    part: Part
    chunk: Chunk
    ids: np.ndarray
    packed: Buffer

    def gather(self) -> None:
        """And wait."""
        for segment in self.chunk:
            self.pool.copier.gather(segment, self.ids, self.packed)
        self.pool.copier.done()

    def scatter(self) -> None:
        """And wait."""
        self.pool.copier.scatter([Lot(self.chunk, self.ids, self.packed)])
        self.pool.copier.done()


def work(machine: Machine, role: gpu_pair.Role, tps: tuple[int, int], chunk_size: int) -> Work:
    """Of rank 0 of a side, between sides of these TPs: as much as fits in one chunk."""
    size = machine.size
    pool = Pool(role, tps[0] if role == "prefill" else tps[1], 0, machine.device, size)
    pair = PairPlan(manifest("prefill", tps[0], size.layers), manifest("decode", tps[1], size.layers))
    part = pair.part(RankId(0, 0), RankId(0, 0))
    ids = np.array(gpu_pair.ids_of(role, size), dtype=np.int64)
    pool.fill(ids.tolist())
    chunk = chunks(part.strips["kv"], size.pages, chunk_size)[0]
    return Work(pool, part, chunk, ids, pool.copier.allocate(chunk_bytes(chunk)))


def equal(machine: Machine) -> Iterator[Row]:
    """What the device packs, unpacks and sums is what numpy does of the same bytes."""
    for tps in (*TPS, (4, 1)):
        for role in ("prefill", "decode"):
            on = work(machine, role, tps, machine.chunk)
            held = [tensor.to("cpu", copy=True).numpy() for tensor in on.pool.tensors]
            regions = [gpu_pair.Region(a.ctypes.data, len(a), a.shape[1]) for a in held]
            numpy, nbytes = NumpyCopier(regions), chunk_bytes(on.chunk)
            draw = np.random.default_rng(1).integers(0, 256, nbytes, np.uint8)
            packed: Any = on.packed.owner
            if role == "prefill":
                on.gather()
                for segment in on.chunk:
                    numpy.gather(segment, on.ids, Buffer(draw.ctypes.data, nbytes, draw))
                same = np.array_equal(packed.cpu().numpy(), draw)
            else:
                packed.copy_(machine.torch.from_numpy(draw))
                machine.wait()
                on.scatter()
                numpy.scatter([Lot(on.chunk, on.ids, Buffer(draw.ctypes.data, nbytes, draw))])
                same = all(np.array_equal(t.cpu().numpy(), a) for t, a in zip(on.pool.tensors, held, strict=True))
            what = "gathered" if role == "prefill" else "scattered"
            yield Row(f"TP {tps[0]} to {tps[1]}: bytes {what}", "equal" if same else "WRONG", same)
            for how in ("sample", "full"):
                sums = [c.sums(on.part, {"kv": on.ids}, how, role) for c in (on.pool.copier, numpy)]
                yield Row(
                    f"TP {tps[0]} to {tps[1]}: {how} sums, {role}", _verdict(sums[0] == sums[1]), sums[0] == sums[1]
                )


def _verdict(same: bool) -> str:
    return "equal" if same else "WRONG"


def bandwidth(machine: Machine) -> Iterator[Row]:
    """Payload a second, beside a plain copy of as much within the device."""
    for what, role, tps in (("gather", "prefill", (1, 2)), ("scatter", "decode", (2, 1))):
        on = work(machine, role, tps, machine.chunk)
        nbytes, torch = chunk_bytes(on.chunk), machine.torch
        here, there = (torch.zeros(nbytes, dtype=torch.uint8, device=machine.device) for _ in range(2))
        plain = nbytes / machine.seconds(lambda here=here, there=there: there.copy_(here))
        ours = nbytes / machine.seconds(on.gather if role == "prefill" else on.scatter)
        value = f"{ours / 1e9:.1f} GB/s of {nbytes >> 20} MiB, copy engine {plain / 1e9:.1f} GB/s ({ours / plain:.0%})"
        yield Row(f"{what}, TP {tps[0]} to {tps[1]}", value)
    on = work(machine, "decode", (2, 1), machine.chunk)
    for how in ("sample", "full"):
        each = machine.seconds(lambda how=how: on.pool.copier.sums(on.part, {"kv": on.ids}, how, "decode"))
        yield Row(f"{how} sums of a request, one source", f"{each * 1e3:.2f} ms")


def overlap(machine: Machine) -> Row:
    """How much of gathering hides behind a matmul that runs on the engine's stream."""
    torch, on = machine.torch, work(machine, "prefill", (1, 2), machine.chunk)
    side = 8192 if machine.kind == "cuda" else 256
    a = torch.randn(
        side, side, device=machine.device, dtype=torch.bfloat16 if machine.kind == "cuda" else torch.float32
    )
    step = machine.seconds(lambda: a @ a)
    alone = machine.seconds(on.gather)
    many = max(1, round(4 * alone / step))
    compute = machine.seconds(lambda: [a @ a for _ in range(many)])

    def both() -> None:
        for _ in range(many):
            a @ a
        on.gather()

    together = machine.seconds(both)
    hidden = max(0.0, min(1.0, (compute + alone - together) / alone))
    value = f"matmul {compute * 1e3:.2f} ms, gather {alone * 1e3:.2f} ms, both {together * 1e3:.2f} ms"
    return Row("overlap with a matmul", f"{hidden:.0%} of the gather hidden: {value}")


def end_to_end(machine: Machine, fabrics: list[str], rooms: int) -> Iterator[Row]:
    """Requests between two processes."""
    size = machine.size
    with closing(gpu_pair.Other()) as other:
        for fabric, tps in itertools.product(fabrics, TPS):
            what = f"{fabric}, TP {tps[0]} to {tps[1]}, {size.pages * PAGE} tokens"
            try:
                moved = other.move(Pair(fabric, *tps, machine.device, size), rooms)
            except (RuntimeError, FabricError, TransferError) as error:
                yield Row(what, f"FAILED: {error}", ok=False)
                continue
            speed = f"{moved.seconds * 1e3:.1f} ms, {size.nbytes / moved.seconds / 1e9:.2f} GB/s"
            same = "bytes equal" if not moved.wrong else f"{moved.wrong} entries WRONG"
            yield Row(what, f"{same}; {speed}; {moved.ways} over {moved.transport}", not moved.wrong)


def missing(device: str) -> str:
    """What this machine lacks for a device; empty where nothing."""
    try:
        import torch
    except ImportError as error:
        return f"torch cannot be imported: {error}"
    kind = torch.device(device).type
    if kind not in SIZES:
        return f"no way to copy on {device}: cuda and cpu are known"
    if kind == "cuda" and not torch.cuda.is_available():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is built without CUDA"
        return f"no GPU that torch can use: torch {torch.__version__} {built}"
    return ""


def rows(machine: Machine, fabrics: list[str], rooms: int) -> Iterator[Row]:
    """All of the table, as it is found."""
    yield machine.said()
    yield Row("model", f"{machine.size.layers} layers, {HEADS} KV heads of {HEAD_BYTES} bytes, pages of {PAGE} tokens")
    yield from equal(machine)
    yield from bandwidth(machine)
    yield overlap(machine)
    yield from end_to_end(machine, fabrics, rooms)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="cuda:N, or cpu to see that the script works")
    parser.add_argument("--fabric", action="append", choices=FABRICS, help="only this one; may be given twice")
    parser.add_argument("--rooms", type=int, default=5, help="requests end to end, of which the median is said")
    given = parser.parse_args(arguments)
    lacks = missing(given.device)
    if lacks:
        print(f"gpu_check: {lacks}", file=sys.stderr)
        print("`--device cpu` runs it in a small size without a GPU", file=sys.stderr)
        return 1
    right = True
    for row in rows(Machine(given.device), given.fabric or list(FABRICS), given.rooms):
        mark = " " if row.ok is None else "✓" if row.ok else "✗"
        print(f"{mark} {row.what:<44} {row.value}", flush=True)
        right = right and row.ok is not False
    return 0 if right else 3


if __name__ == "__main__":
    sys.exit(main())

"""Accelerators that engines of a fleet take on one host: by `devices`, by the variable, by the engine's own flags.

Where nothing is said an engine takes the first ones, however many other engines of the host do the same.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from pdctl.engines.spans import span_of
from pdctl.flags import Reading, dialect

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Pool
    from pdctl_topology import Host

VISIBLE: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
SHARE: Final = {"sglang": "--mem-fraction-static", "vllm": "--gpu-memory-utilization"}
"""How much of an accelerator's memory an engine takes; two that leave each other room share one."""


class Placed(Struct, frozen=True):
    """One engine on a host. `visible`: what it is shown, None for all; `ranks`: how many of those it takes."""

    name: str
    ranks: int
    visible: tuple[str, ...] | None
    source: str
    first: int = 0
    step: int = 1
    share: float | None = None
    alone: bool = False
    """In a pod of its own, whose accelerators are counted from 0 whichever of the host's they are."""

    def taken(self, host: "Host") -> tuple[int, ...] | None:
        """Numbers of the host's accelerators, in the order of its ranks. One beyond the last is not there.

        None where one is named in a way that cannot be looked up: a slice (MIG), a UUID that no driver told.
        """
        if self.visible is None:
            shown: list[int] = list(range(self.first + self.step * self.ranks))
        else:
            known = {gpu.uuid: gpu.index for gpu in host.gpus if gpu.uuid}
            numbers = [int(one) if one.isdigit() else known.get(one) for one in self.visible]
            shown = [number for number in numbers if number is not None]
            if len(shown) < len(numbers):
                return None
        return tuple(shown[self.first :: self.step][: self.ranks])

    @property
    def wanted(self) -> str:
        """What it is given, in words."""
        return f"{self.name}: {'all' if self.visible is None else ', '.join(self.visible)}"


def placed_on(loaded: "LoadedFleet", pool: "Pool", host: str, reading: Reading) -> tuple[Placed, ...]:
    """The engines of a pool on a host, none for what runs on CPUs."""
    engine = dialect(pool.engine or loaded.fleet.engine)
    ranks = span_of(loaded, pool).per_node
    if engine not in SHARE or ranks is None or (pool.nodes == 1 < _number(reading, "--nnodes", 1)):
        return ()
    if on_cpu(pool, reading):
        return ()
    visible, source = _visible(loaded, pool)
    share = reading.value(SHARE[engine])
    first, step = _number(reading, "--base-gpu-id", 0), _number(reading, "--gpu-id-step", 1)
    each = ((name, [at for at, _ in pool.places(index)]) for index, name in enumerate(pool.members))
    here = {name: ranks * count for name, hosts in each if (count := hosts.count(host or "localhost"))}
    taken = float(share) if share is not None and re.fullmatch(r"[01]?\.?\d+", share) else None
    alone = not pool.shares_ports
    return tuple(
        Placed(name, count, visible, source, first, max(1, step), taken, alone) for name, count in here.items()
    )


def on_cpu(pool: "Pool", reading: Reading) -> bool:
    """Whether the file says that the pool's engines run without accelerators."""
    return reading.value("--device") == "cpu" or pool.env.get("VLLM_TARGET_DEVICE") == "cpu"


def _visible(loaded: "LoadedFleet", pool: "Pool") -> tuple[tuple[str, ...] | None, str]:
    """What the engine is shown and where that is written; a variable of the pool goes before `devices`."""
    for name in VISIBLE:
        if name in pool.env:
            return _listed(pool.env[name]), f"{loaded.where(f'{pool.key}.env.{name}')} {name}"
    if pool.devices:
        return tuple(pool.devices), loaded.where(f"{pool.key}.devices")
    return None, loaded.where(pool.key)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())


def _number(reading: Reading, flag: str, otherwise: int) -> int:
    value = reading.value(flag)
    return int(value) if value is not None and value.isdigit() else otherwise


def together(taken: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Pairs of engines that take an accelerator both, and which."""
    names = list(taken)
    for place, one in enumerate(names):
        for other in names[place + 1 :]:
            both = tuple(sorted(set(taken[one]) & set(taken[other])))
            if both:
                yield one, other, both

"""Buffers before they are cut into stages and ranks, and how they become entries of a manifest.

A `Buffer` is one tensor of many layers; a `Pool` is a component's buffers in the order in which the engine registers
them. `components` cuts pools at a stage's layers. All shapes follow the table of `pdctl.layout/v1`.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from pdctl_transfer.layout.algebra import divides, item_len
from pdctl_transfer.layout.manifest import Component, EnginePairs, EngineSlices, Entry, Group, IndexSpace, Sharding


class Buffer(Struct, frozen=True, kw_only=True):
    """One tensor, registered once for each of `layers`: items of `[outer][units][inner_bytes]`."""

    tensor: str
    layers: tuple[int, ...]
    groups: tuple[Group, ...]
    inner_bytes: int
    outer: int = 1
    sharding: Sharding = "split"
    engine_slices: EngineSlices = "groups"
    empty: frozenset[int] = frozenset()
    """Layers with a placeholder: an entry of no bytes that keeps its place."""
    once: int | None = None
    """Request-wide: registered once, under this id, by each stage that has any of `layers`."""


class Pool(Struct, frozen=True, kw_only=True):
    """The buffers that travel as one component, in registration order."""

    kind: str
    index_space: IndexSpace
    buffers: tuple[Buffer, ...]
    engine_pairs: EnginePairs = "layer"
    all_stages: bool = False
    """The engine gives every pipeline stage all layers of it."""
    apart: bool = False
    """A draft's pool that is a component of its own, and not the end of the target's."""


def undivided(buffer: Buffer, tp: int) -> Group | None:
    """The first group that cannot be cut over `tp` ranks: neither number divides the other."""
    if buffer.sharding == "replicated":
        return None
    return next((group for group in buffer.groups if not divides(group.heads, tp)), None)


def entries(buffer: Buffer, layers: Iterable[int], tp: int) -> list[Entry]:
    """One entry for each of `layers` that the buffer has, in the buffer's order; one in all if it is request-wide."""
    wanted = set(layers)
    held = [layer for layer in buffer.layers if layer in wanted]
    if buffer.once is not None:
        held = [buffer.once] if held else []
    empty = Entry(
        layer=None,
        tensor=buffer.tensor,
        sharding=buffer.sharding,
        outer=buffer.outer,
        groups=buffer.groups,
        inner_bytes=0,
        item_len=0,
        engine_slices=buffer.engine_slices,
    )
    full = replace(empty, inner_bytes=buffer.inner_bytes)
    full = replace(full, item_len=item_len(full, tp))
    return [replace(empty if layer in buffer.empty else full, layer=layer) for layer in held]


def component(pool: Pool, layers: Iterable[int], tp: int, extra: Pool | None = None) -> Component:
    """The pool's entries for `layers`, cut over `tp` ranks, and after them all entries of `extra` (a draft's)."""
    wanted = set(layers)
    held = [entry for buffer in pool.buffers for entry in entries(buffer, wanted, tp)]
    if extra is not None:
        held += [entry for buffer in extra.buffers for entry in entries(buffer, buffer.layers, tp)]
    return Component(kind=pool.kind, index_space=pool.index_space, entries=tuple(held), engine_pairs=pool.engine_pairs)

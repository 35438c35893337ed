"""Small manifests for tests, item lengths computed by the contract's formula."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from pdctl_transfer.layout.algebra import item_len
from pdctl_transfer.layout.manifest import (
    Component,
    Engine,
    Entry,
    Group,
    Manifest,
    Model,
    Parallel,
    Stage,
    Transfer,
)

PAGE = 16


def groups(*pairs: tuple[int, int]) -> tuple[Group, ...]:
    return tuple(Group(heads, width) for heads, width in pairs)


def entry(layer: int | None, tensor: str, cut: tuple[Group, ...], outer: int = 1, inner: int = 4, **more: Any) -> Entry:
    """An entry still without item length; `manifest` fills it in."""
    return Entry(layer, tensor, more.pop("sharding", "split"), outer, cut, inner, 0, **more)


def replicated(layer: int | None, tensor: str, width: int = 1, outer: int = 1, inner: int = 4) -> Entry:
    return entry(layer, tensor, groups((1, width)), outer, inner, sharding="replicated")


def kv(layers: Sequence[int | None], heads: int = 4, page: int = PAGE, inner: int = 8, **more: Any) -> Component:
    """K of every layer, then V: the order in which SGLang registers them."""
    entries = [entry(i, tensor, groups((heads, 1)), page, inner) for tensor in "kv" for i in layers]
    return Component("kv", "page", tuple(entries), **more)


def component(kind: str, space: Any, *entries: Entry, **more: Any) -> Component:
    return Component(kind, space, entries, **more)


def stage(pp_rank: int, layers: tuple[int, int], *components: Component) -> Stage:
    return Stage(pp_rank, layers, components)


def manifest(role: Any, tp: int, *stages: Stage, page: int = PAGE, engine: str = "sglang") -> Manifest:
    """Stages with every item length filled in for `tp` ranks."""
    filled = tuple(
        replace(
            part,
            components=tuple(
                replace(c, entries=tuple(replace(e, item_len=item_len(e, tp)) for e in c.entries))
                for c in part.components
            ),
        )
        for part in stages
    )
    return Manifest(
        role=role,
        origin="derived",
        engine=Engine(engine, "1.0"),
        model=Model("m"),
        transfer=Transfer("mooncake"),
        parallel=Parallel(tp, pp=len(stages)),
        page_size=page,
        kv_cache_dtype="bfloat16",
        kv_layout=None,
        speculative=None,
        stages=filled,
    )


def single(role: Any, tp: int, *components: Component, layers: int = 8, page: int = PAGE) -> Manifest:
    """A side of one pipeline stage."""
    return manifest(role, tp, stage(0, (0, layers), *components), page=page)

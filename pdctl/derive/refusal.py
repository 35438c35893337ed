"""Refusals that every engine shares: where it would not start, no layout is printed."""

from collections.abc import Iterable

from pdctl.derive.geometry import Geometry
from pdctl.derive.shapes import Pool, undivided
from pdctl.errors import ConfigError


def refuse_undivided(pools: Iterable[Pool], attn_tp: int, source: str) -> None:
    """PD1004 where a split state's heads and the attention ranks do not divide each other."""
    for pool in pools:
        for buffer in pool.buffers:
            if (group := undivided(buffer, attn_tp)) is not None:
                what = f"{pool.kind} {buffer.tensor}: {group.heads} heads"
                raise ConfigError(
                    f"{what} and attention TP {attn_tp}: neither divides the other",
                    where=source,
                    code="PD1004",
                    hint="choose a TP that divides the heads, or is a multiple of them",
                )


def refuse_groups(geometry: Geometry, attn_tp: int, source: str, engine: str) -> None:
    """PD1004 where Mamba2 groups, more than one of them, do not divide over the ranks."""
    state = geometry.recurrent
    if state is None or state.groups_key is None:
        return
    groups = state.conv[1].heads
    if groups > 1 and groups % attn_tp:
        raise ConfigError(
            f"{state.groups_key}: {groups} groups do not divide by attention TP {attn_tp}; {engine} does not start",
            where=source,
            code="PD1004",
            hint=f"choose a TP that divides {groups}",
        )


def refuse_page(geometry: Geometry, page_size: int, source: str) -> None:
    """PD1019 where a page does not hold whole groups of compressed keys."""
    if geometry.qsa is not None and page_size % geometry.qsa.ratio:
        raise ConfigError(
            f"indexer_compress_ratio: page size {page_size} is not a multiple of {geometry.qsa.ratio}",
            where=source,
            code="PD1019",
            hint="choose a page size that is a multiple of the compression ratio",
        )

"""What is timed: K and V of GQA layers, 8 heads of 128 bfloat16, cut by TP."""

from typing import Literal, NamedTuple

from pdctl_transfer.layout.algebra import item_len
from pdctl_transfer.layout.manifest import Component, Engine, Entry, Group, Manifest, Model, Parallel, Stage, Transfer

Role = Literal["prefill", "decode"]

HEADS = 8


class Shape(NamedTuple):
    """One side. `items`: pages of memory it has. At TP 1 and the defaults a token of a layer and tensor is 2 KiB."""

    tp: int
    items: int = 128
    page: int = 64
    layers: int = 4
    head_bytes: int = 256


def manifest(role: Role, shape: Shape) -> Manifest:
    """K and V of each layer, NHD."""
    groups = (Group(HEADS, 1),)
    size = item_len(Entry(0, "k", "split", shape.page, groups, shape.head_bytes, 0), shape.tp)
    entries = tuple(
        Entry(layer, tensor, "split", shape.page, groups, shape.head_bytes, size)
        for layer in range(shape.layers)
        for tensor in ("k", "v")
    )
    return Manifest(
        role=role,
        origin="live",
        engine=Engine("reference", "0"),
        model=Model("bench", "dense", "sha256:0"),
        transfer=Transfer("mooncake"),
        parallel=Parallel(shape.tp),
        page_size=shape.page,
        kv_cache_dtype="bfloat16",
        kv_layout="nhd",
        speculative=None,
        stages=(Stage(0, (0, shape.layers), (Component("kv", "page", entries),)),),
    )

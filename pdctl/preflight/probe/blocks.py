"""What a probe moves: the blocks of the real plan between one rank of each side, for as many pages as fit a budget."""

from typing import TYPE_CHECKING

from msgspec import Struct

from pdctl_transfer.layout.algebra import item_len
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.region import Region

if TYPE_CHECKING:
    from pdctl_transfer.plan import Plan, RankId

BYTES = 32 << 20
BLOCKS = 4096
MOST_ITEMS = 256


class Load(Struct, frozen=True):
    """Copies between two buffers, as offsets and lengths in bytes. `words` says what they are."""

    src: list[int]
    dst: list[int]
    length: list[int]
    src_bytes: int
    dst_bytes: int
    words: str

    @property
    def total(self) -> int:
        """Bytes that are moved."""
        return sum(self.length)


def load_of(prefill: Manifest, decode: Manifest) -> Load:
    """The copies into the first decode rank from the first prefill rank that writes to it. Raises PlanError."""
    from pdctl_transfer.plan import RankId, make_plan

    plan = make_plan(prefill, decode)
    target = RankId(0, 0)
    source = plan.sources_of(target)[0]
    part = plan.between(source, target)
    items = MOST_ITEMS
    while True:
        load = _bound(part, prefill, decode, source, target, items)
        if items == 1 or (load.dst_bytes <= BYTES and len(load.length) <= BLOCKS):
            return load
        items //= 2


def _bound(part: "Plan", prefill: Manifest, decode: Manifest, source: "RankId", target: "RankId", items: int) -> Load:
    from pdctl_transfer.plan import bind

    src, src_bytes = _regions(prefill, source.pp, items)
    dst, dst_bytes = _regions(decode, target.pp, items)
    counts = {kind: _count(space, items) for kind, space in _kinds(prefill)}
    # what an engine hands out after a while is in no order: neighbours merge on neither side by luck
    here = {kind: [(7 * i) % count if count % 7 else i for i in range(count)] for kind, count in counts.items()}
    there = {kind: list(range(count)) for kind, count in counts.items()}
    blocks = bind(part, src, dst, here, there)
    words = f"{items} pages from rank {source.tp} of TP {prefill.parallel.attn_tp} to TP {decode.parallel.attn_tp}"
    return Load(blocks.src.tolist(), blocks.dst.tolist(), blocks.length.tolist(), src_bytes, dst_bytes, words)


def _regions(manifest: Manifest, pp: int, items: int) -> tuple[list[Region], int]:
    """The regions of a rank, one after another from offset 0, and their sum."""
    stage = next(stage for stage in manifest.stages if stage.pp_rank == pp)
    regions, at = [], 0
    for component in stage.components:
        count = _count(component.index_space, items)
        for entry in component.entries:
            length = item_len(entry, manifest.parallel.attn_tp)
            regions.append(Region(at, count, length))
            at += count * length
    return regions, at


def _kinds(manifest: Manifest) -> list[tuple[str, str]]:
    return [(part.kind, part.index_space) for stage in manifest.stages for part in stage.components]


def _count(space: str, items: int) -> int:
    """Pages are many a request, state slots and rows one."""
    return items if "page" in space else 1


def plain_load() -> Load:
    """Blocks of 64 KiB, where no layout can be derived."""
    size, count = 64 << 10, 256
    offsets = [size * i for i in range(count)]
    return Load(offsets[::-1], offsets, [size] * count, size * count, size * count, "blocks of 64 KiB")

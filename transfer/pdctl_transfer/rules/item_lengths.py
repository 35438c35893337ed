"""PD1008: paired entries must have one shape, so that what prefill holds is, cut for decode's ranks, what decode holds.

Where page size, dtype or layout of the KV already differ, paged entries differ in consequence, and only the cause is
reported. A draft's entries are PD1015's, a compressor's state is PD1051's.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.algebra import divides, is_draft, item_len, num_layers
from pdctl_transfer.layout.manifest import Entry
from pdctl_transfer.layout.pairing import Pair as EntryPair
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, listed

PAGED = frozenset({"page", "window_page"})
#: Tensors that hold a compressor's unfinished groups of tokens.
COMPRESSORS = frozenset({"state", "index_state"})


def check_item_lengths(pair: Pair) -> Iterator[Outcome]:
    """One finding a kind and tensor."""
    explained = _explained_kinds(pair)
    consequences: set[str] = set()
    differing: dict[tuple[str, str], list[EntryPair]] = {}
    for entries in unlike_pairs(pair):
        if is_compressor(entries):
            continue
        if entries.src.kind in explained:
            consequences.add(entries.src.kind)
        elif not is_draft(entries.layer, num_layers(pair.prefill)):
            differing.setdefault((entries.src.kind, entries.dst.entry.tensor), []).append(entries)
    for (kind, tensor), found in differing.items():
        src, dst = found[0].src.entry, found[0].dst.entry
        layers = listed(entries.layer for entries in found)
        evidence = [pair.prefill_side.said(shape(src)), pair.decode_side.said(shape(dst))]
        what = f"{kind} {tensor}: {_lengths(src, dst, pair.tp)} (layers {layers})"
        yield pair.finding("PD1008", evidence, what=what)
    if consequences:
        yield pair.skipped("item_lengths", f"{listed(sorted(consequences))}: shapes follow from settings that differ")
    elif not differing:
        yield pair.held("item_lengths", f"{len(pair.pairing.pairs)} paired entries have one shape")


def unlike_pairs(pair: Pair) -> Iterator[EntryPair]:
    """Paired entries that are not one state cut for two rank counts."""
    tp = pair.decode.parallel.attn_tp
    for entries in pair.pairing.pairs:
        src, dst = entries.src.entry, entries.dst.entry
        reshaped = (src.outer, src.groups, src.inner_bytes) != (dst.outer, dst.groups, dst.inner_bytes)
        if reshaped or (src.sharding != dst.sharding and _splits(src, tp) and item_len(src, tp) != dst.item_len):
            yield entries


def is_compressor(entries: EntryPair) -> bool:
    """Whether the pair holds a compressor's state."""
    return entries.src.entry.tensor in COMPRESSORS


def shape(entry: Entry) -> str:
    """`conv: item_len 3072 = outer 1, groups 4×32 + 8×32 split, 6 bytes a unit`."""
    groups = " + ".join(f"{group.heads}×{group.width}" for group in entry.groups)
    units = f"outer {entry.outer}, groups {groups} {entry.sharding}, {entry.inner_bytes} bytes a unit"
    return f"{entry.tensor}: item_len {entry.item_len} = {units}"


def _lengths(src: Entry, dst: Entry, tp: tuple[int, int]) -> str:
    if not src.inner_bytes or not dst.inner_bytes:
        empty = "prefill" if not src.inner_bytes else "decode"
        return f"{src.item_len} bytes an item on prefill, {dst.item_len} on decode: {empty} has a placeholder"
    at = "" if tp[0] == tp[1] else f" at attention TP {tp[0]} and {tp[1]}"
    same = " in another shape" if src.item_len == dst.item_len else ""
    return f"{src.item_len} bytes an item on prefill, {dst.item_len} on decode{at}{same}"


def _explained_kinds(pair: Pair) -> set[str]:
    """Paged kinds, where their cause is another code's."""
    prefill, decode = pair.prefill, pair.decode
    pages = prefill.page_size != decode.page_size
    layouts = None not in (prefill.kv_layout, decode.kv_layout) and prefill.kv_layout != decode.kv_layout
    if not (pages or layouts or prefill.kv_cache_dtype != decode.kv_cache_dtype):
        return set()
    return {part.kind for part in components(prefill, decode) if part.index_space in PAGED}


def _splits(entry: Entry, tp: int) -> bool:
    return entry.sharding == "replicated" or (tp >= 1 and all(divides(group.heads, tp) for group in entry.groups))

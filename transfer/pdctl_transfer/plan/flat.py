"""What an engine would corrupt that cuts a concatenated state flat (`engine_slices: flat`, PD1016).

SGLang 0.5.23 slices Mamba2's conv state `cat(x, B, C)` across unequal attention TP as if it were one axis: a prefill
rank's row goes to one contiguous place of the decode rank's row, or the reverse. The rule below is that of its
`compute_mamba_state_slice_blocks` without sub-blocks; the damage is counted by following it, unit by unit.
"""

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from pdctl_transfer.layout.algebra import local_units
from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.plan.expected import held_units, targets


class FlatCopy(Struct, frozen=True):
    """One flat copy between two ranks, in units of a row."""

    src: int
    dst: int
    src_unit: int
    dst_unit: int
    units: int


class Damage(Struct, frozen=True):
    """What the flat slices leave in one decode entry, over all its ranks; channels are units of the unit axis.

    `wrong` of `channels` hold what belongs elsewhere, or nothing. `past_end`: bytes of one copy at most that run past
    the decode item, into the next request's slot; `read_past`: the same past the prefill item.
    """

    kind: str
    layer: int | None
    tensor: str
    n: int
    channels: int
    wrong: int
    past_end: int
    read_past: int


def flat_copies(entry: Entry, src_tp: int, dst_tp: int) -> Iterator[FlatCopy]:
    """The engine's copies, for TP sizes of which one divides the other; nothing for others."""
    src_units, dst_units = local_units(entry, src_tp), local_units(entry, dst_tp)
    if src_tp > dst_tp and src_tp % dst_tp == 0:
        writers = src_tp // dst_tp
        for src in range(src_tp):
            yield FlatCopy(src, src // writers, 0, src % writers * src_units, src_units)
    elif dst_tp > src_tp and dst_tp % src_tp == 0:
        for dst in range(dst_tp):
            yield FlatCopy(dst * src_tp // dst_tp, dst, dst * dst_units % src_units, 0, dst_units)


def flat_damage(prefill: Manifest, decode: Manifest) -> tuple[Damage, ...]:
    """The damage to every entry of several groups that the engine cuts flat; empty at equal attention TP."""
    src_tp, dst_tp = prefill.parallel.attn_tp, decode.parallel.attn_tp
    if src_tp == dst_tp:
        return ()
    seen: dict[object, tuple[int, int, int, int]] = {}
    found = []
    for target in targets(prefill, decode).values():
        flat = "flat" in (target.src.engine_slices, target.dst.engine_slices)
        if not flat or target.src.sharding != "split" or len(target.src.groups) < 2 or not target.dst.inner_bytes:
            continue
        if target.src_shape not in seen:
            seen[target.src_shape] = _follow(target.src, src_tp, dst_tp)
        damage = Damage(target.kind, target.layer, target.tensor, target.n, *seen[target.src_shape])
        if damage.wrong or damage.past_end or damage.read_past:
            found.append(damage)
    return tuple(found)


def _follow(entry: Entry, src_tp: int, dst_tp: int) -> tuple[int, int, int, int]:
    """(channels, wrong, past_end, read_past) of one item on all decode ranks."""
    outer = np.arange(entry.outer)[:, None]
    axis = sum(group.heads * group.width for group in entry.groups)
    sources = [(outer * axis + held_units(entry, src_tp, rank)).ravel() for rank in range(src_tp)]
    expected = [(outer * axis + held_units(entry, dst_tp, rank)).ravel() for rank in range(dst_tp)]
    arrived = [np.full(len(units), -1, dtype=np.int64) for units in expected]
    src_row, dst_row = len(sources[0]) // entry.outer, len(expected[0]) // entry.outer
    past_end = read_past = 0
    for copy in flat_copies(entry, src_tp, dst_tp):
        source, target = sources[copy.src], arrived[copy.dst]
        for row in range(entry.outer):
            read = row * src_row + copy.src_unit + np.arange(copy.units)
            write = row * dst_row + copy.dst_unit + np.arange(copy.units)
            read_past = max(read_past, int(read[-1]) + 1 - len(source))
            past_end = max(past_end, int(write[-1]) + 1 - len(target))
            values = np.where(read < len(source), source[np.minimum(read, len(source) - 1)], -2)
            target[write[write < len(target)]] = values[write < len(target)]
    channels = sum(len(units) for units in expected)
    wrong = sum(int((got != right).sum()) for got, right in zip(arrived, expected, strict=True))
    return channels, wrong, past_end * entry.inner_bytes, read_past * entry.inner_bytes

"""Blocks of packed rows: from items or scratch on this side, into staging or items on the other."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.blocks import Blocks
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Buffer
from pdctl_transfer.session.bytes.packing import GATHER_BELOW, Chunk, Segment, id_runs

Column = NDArray[np.int64]


def gathered(chunk: Chunk, ids: Column) -> list[bool]:
    """Of each segment of a staged chunk, whether it must be gathered: its runs of source bytes are short."""
    return [_short(segment, ids) for segment in chunk]


def staged_blocks(copier: Copier, chunk: Chunk, ids: Column, base: int, scratch: Buffer | None) -> Blocks:
    """Blocks that bring a chunk to `base`: gathered out of scratch where there is one, long runs as they are.

    What is gathered and follows each other in packed form is one block; it is there when this returns. `scratch`:
    registered memory of this side, as large as the chunk; None where nothing of it is `gathered`. Raises TransferError
    PD4016 where the copier cannot gather.
    """
    rows: list[tuple[int, int, int]] = []
    end = -1
    for segment, short in zip(chunk, gathered(chunk, ids), strict=True):
        if not short:
            rows += _source_runs(copier.regions, segment, ids, base + segment.at)
            continue
        assert scratch is not None
        copier.gather(segment, ids, scratch)
        if end == segment.at:
            src, dst, length = rows[-1]
            rows[-1] = (src, dst, length + segment.bytes)
        else:
            rows.append((scratch.base + segment.at, base + segment.at, segment.bytes))
        end = segment.at + segment.bytes
    copier.done()
    return Blocks(*np.array(rows, dtype=np.int64).T)


def packed_blocks(
    copier: Copier, chunk: Chunk, ids: Column, there: Sequence[Region], there_ids: Column, scratch: Buffer
) -> Blocks:
    """Blocks that bring a chunk out of scratch, into which it was gathered when this returns, to where the receiver
    holds its rows in one piece. Raises TransferError PD4016 where the copier cannot gather."""
    rows: list[tuple[int, int, int]] = []
    for segment in chunk:
        copier.gather(segment, ids, scratch)
        strip, packed = segment.strip, scratch.base + segment.at
        items = there[strip.dst_index].base + strip.dst_run
        for n, item, count in _runs(segment, there_ids, strip.dst_step):
            rows.append((packed + n * strip.bytes, items + item * strip.dst_step, count * strip.bytes))
    copier.done()
    return Blocks(*np.array(rows, dtype=np.int64).T)


def _short(segment: Segment, ids: Column) -> bool:
    strip = segment.strip
    return strip.src_run < 0 or segment.bytes < len(_runs(segment, ids, strip.src_step)) * GATHER_BELOW


def _source_runs(here: Sequence[Region], segment: Segment, ids: Column, base: int) -> list[tuple[int, int, int]]:
    """(source, destination, length) of what stands in source items as in packed form, `base` on."""
    strip = segment.strip
    items = here[strip.src_index].base + strip.src_run
    return [
        (items + item * strip.src_step, base + n * strip.bytes, count * strip.bytes)
        for n, item, count in _runs(segment, ids, strip.src_step)
    ]


def _runs(segment: Segment, ids: Column, item_bytes: int) -> list[tuple[int, int, int]]:
    """(position, item, how many) of items that stand in one piece: those that follow each other if filled whole."""
    mine = ids[segment.start : segment.stop]
    if segment.strip.bytes == item_bytes:
        return id_runs(mine)
    return [(n, item, 1) for n, item in enumerate(mine.tolist())]

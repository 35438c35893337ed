"""Whole pages instead of slices of a token: SGLang's own path at unequal TP, for decode engines without a core.

Where prefill's attention TP is below decode's, each page on decode is filled by one prefill rank. SGLang writes it
token by token; here the rank gathers its heads of whole pages into registered scratch first, and writes them as they
will stand there, consecutive pages as one. Nothing changes on decode, and nothing is confirmed there.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pdctl_transfer.plugins import sglang_shape
from pdctl_transfer.plugins.guard import guarded
from pdctl_transfer.plugins.sglang_manager import Manager
from pdctl_transfer.session.bytes.copier import Copier
from pdctl_transfer.session.bytes.copying import Buffer
from pdctl_transfer.session.bytes.packing import Copy, Segment, Strip, id_runs

SCRATCH_BYTES: Final = 32 << 20
BATCH: Final = 1000
"""Blocks of one call: Mooncake queues 2048 a peer, and the core's are there as well."""

Column = NDArray[np.int64]
Write = Callable[[list[int], list[int], list[int]], int]
"""Source and destination addresses and lengths of blocks; 0 where all were written."""


class Slice(NamedTuple):
    """What of each token goes to one decode rank: `length` bytes at `offset`, `page` tokens a page."""

    offset: int
    length: int
    page: int
    src_item: int

    @property
    def dst_item(self) -> int:
        """Bytes of a page on decode: it holds nothing else."""
        return self.length * self.page


class Pages:
    """Gathers and writes; one call at a time, as there is one scratch. `register`: makes memory known to the engine."""

    def __init__(
        self, copier: Copier, register: Callable[[int, int], object], scratch_bytes: int = SCRATCH_BYTES
    ) -> None:
        self._copier, self._register, self._size = copier, register, scratch_bytes
        self._scratch: Buffer | None = None
        self._lock = threading.Lock()

    def fits(self, what: Slice) -> bool:
        """Whether a page has room in the scratch."""
        return self._copier.can_copy and 0 < what.dst_item <= self._size

    def send(
        self, write: Write, what: Slice, src_ids: Column, dst_ids: Column, entries: Sequence[tuple[int, int]]
    ) -> int:
        """Write these pages of each entry (its region's index here, its address on decode). The first status that is
        not 0, else 0."""
        with self._lock:
            scratch = self._prepared()
            step = max(1, self._size // what.dst_item)
            blocks: list[tuple[int, int, int]] = []
            used = 0
            for index, base in entries:
                copy = Copy(what.offset, 0, what.length, what.page, what.src_item // what.page, what.length, 0)
                strip = Strip(index, 0, what.src_item, what.dst_item, what.dst_item, -1, 0, (copy,))
                for start in range(0, len(src_ids), step):
                    stop = min(start + step, len(src_ids))
                    size = (stop - start) * what.dst_item
                    if used + size > self._size:
                        if status := self._flush(write, blocks):
                            return status
                        used = 0
                    self._copier.gather(Segment(strip, start, stop, used), src_ids, scratch)
                    for place, first, run in id_runs(dst_ids[start:stop]):
                        at = scratch.base + used + place * what.dst_item
                        blocks.append((at, base + first * what.dst_item, run * what.dst_item))
                    used += size
            return self._flush(write, blocks)

    def _flush(self, write: Write, blocks: list[tuple[int, int, int]]) -> int:
        self._copier.done()
        for start in range(0, len(blocks), BATCH):
            src, dst, length = (list(column) for column in zip(*blocks[start : start + BATCH], strict=True))
            if status := write(src, dst, length):
                return status
        blocks.clear()
        return 0

    def _prepared(self) -> Buffer:
        if self._scratch is None:
            scratch = self._copier.allocate(self._size)
            self._register(scratch.base, scratch.nbytes)
            self._scratch = scratch
        return self._scratch


class SlicingManager(Manager):
    """Mooncake's manager: the engine's own way to a decode engine without a core takes whole pages, where it can."""

    def send_kvcache_slice(
        self,
        mooncake_session_id: str,
        prefill_kv_indices: Any,
        dst_kv_ptrs: list[int],
        dst_kv_indices: Any,
        dst_tp_rank: int,
        dst_attn_tp_size: int,
        dst_kv_item_len: int,
        executor: Any,
        dst_layer_ids: Any = None,
    ) -> int:
        """The engine's, or its equal in whole pages."""
        target = (dst_tp_rank, dst_attn_tp_size, dst_kv_item_len)
        ids = (prefill_kv_indices, dst_kv_indices)
        status = self._pages(mooncake_session_id, ids, dst_kv_ptrs, target, dst_layer_ids)
        if status is not None:
            return status
        own: Any = super()
        return int(
            own.send_kvcache_slice(
                mooncake_session_id,
                prefill_kv_indices,
                dst_kv_ptrs,
                dst_kv_indices,
                *target,
                executor,
                dst_layer_ids,
            )
        )

    @guarded(None)
    def _pages(
        self, session: str, ids: tuple[Any, Any], bases: list[int], target: tuple[int, int, int], layers: Any
    ) -> int | None:
        """None where only the engine's own way is right."""
        pages: Pages | None = self.core.pages if self.core is not None else None
        what = self._slice(*target) if pages is not None else None
        if pages is None or what is None or not pages.fits(what):
            return None

        def write(src: list[int], dst: list[int], length: list[int]) -> int:
            return int(self.engine.batch_transfer_sync(session, src, dst, length))

        src_ids, dst_ids = (np.asarray(column, dtype=np.int64) for column in ids)
        return pages.send(write, what, src_ids, dst_ids, self._entries(bases, layers))

    def _slice(self, rank: int, tp: int, item: int) -> Slice | None:
        """What a decode rank needs of each token; None where its pages are not filled from here alone."""
        from sglang.srt.disaggregation.common.staging_buffer import compute_head_slice_params

        args = self.kv_args
        own, page = args.kv_item_lens[0], args.page_size
        heads = getattr(args, "total_kv_head_num", 0) or args.kv_head_num * self.attn_tp_size
        first, count, at, _ = compute_head_slice_params(self.attn_tp_size, tp, args.engine_rank, rank, heads)
        head = item // page // max(1, heads // tp)
        if at or count * head * page != item or any(one != own for one in args.kv_item_lens):
            return None
        return Slice(first * head, count * head, page, own)

    def _entries(self, bases: list[int], layers: Any) -> list[tuple[int, int]]:
        """Entries here, by their places, with their partners' addresses."""
        from sglang.srt.disaggregation.utils import build_transfer_entry_pairs

        args = self.kv_args
        mine = args.kv_data_ptrs
        if args.kv_layer_ids or layers:
            return [
                (ours, bases[theirs])
                for ours, theirs in build_transfer_entry_pairs(
                    args.kv_layer_ids,
                    layers or [],
                    len(mine),
                    len(bases),
                    allow_positional_fallback=self.pp_size == 1,
                )
            ]
        keys, values, their_keys, their_values, count = self.get_mha_kv_ptrs_with_pp(mine, bases)
        pairs = [
            *zip(keys[:count], their_keys[:count], strict=True),
            *zip(values[:count], their_values[:count], strict=True),
        ]
        return [(place, theirs) for place, (_, theirs) in enumerate(pairs)]


def usable() -> bool:
    """Whether the installed engine has the slices that this stands in for."""
    return not sglang_shape.unlike_slices()

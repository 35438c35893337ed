"""Whole pages of slices, for decode engines without a core: what stands there, in how many blocks, and who falls back.

The engine's own functions, by which it cuts and pairs, are stand-ins here; the real ones run in tests/engines.
"""

import ctypes
import sys
import types
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdctl_transfer.plugins.sglang_slices import BATCH, Pages, Slice, SlicingManager
from pdctl_transfer.region import Region
from pdctl_transfer.session.bytes.copier import NumpyCopier

PAGE, HEADS, HEAD, COUNT = 4, 4, 8, 64
ITEM = PAGE * HEADS * HEAD


class Wire:
    """Blocks that are written at once."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.status = 0

    def __call__(self, src: list[int], dst: list[int], length: list[int]) -> int:
        self.calls.append(len(src))
        for one, other, size in zip(src, dst, length, strict=True):
            ctypes.memmove(other, one, size)
        return self.status


@pytest.fixture
def source() -> np.ndarray[Any, Any]:
    """Two entries of prefill at TP 1: [entry][page][token][head][byte]."""
    return np.random.default_rng(7).integers(0, 256, (2, COUNT, PAGE, HEADS, HEAD), dtype=np.uint8)


def pages_of(source: np.ndarray[Any, Any], scratch: int = 1 << 20) -> tuple[Pages, list[int]]:
    known: list[int] = []
    regions = [Region(one.ctypes.data, COUNT, ITEM) for one in source]
    return Pages(NumpyCopier(regions), lambda base, _: known.append(base), scratch), known


@pytest.mark.parametrize("scratch", [1 << 20, 3 * ITEM // 2])
def test_each_page_on_decode_holds_its_heads_and_no_other_page_is_touched(
    source: np.ndarray[Any, Any], scratch: int
) -> None:
    """Also where the scratch holds three pages and is filled again and again."""
    pages, known = pages_of(source, scratch)
    there = np.zeros((2, COUNT, PAGE, 2, HEAD), dtype=np.uint8)  # rank 1 of 2
    src, dst = np.array([5, 9, 7, 30, 31]), np.array([2, 3, 40, 41, 9])
    wire = Wire()
    entries = [(0, there[0].ctypes.data), (1, there[1].ctypes.data)]
    assert pages.send(wire, Slice(2 * HEAD, 2 * HEAD, PAGE, ITEM), src, dst, entries) == 0
    expected = np.zeros_like(there)
    expected[:, dst] = source[:, src][:, :, :, 2:]
    assert (there == expected).all()
    assert len(known) == 1  # the scratch is registered once
    if scratch > ITEM * 20:
        assert wire.calls == [6]  # 2-3, 40-41 and 9, in two entries, where SGLang writes 40 slices


def test_blocks_are_written_in_batches_that_mooncake_takes(source: np.ndarray[Any, Any]) -> None:
    pages, _ = pages_of(source)
    there = np.zeros((2, 4 * COUNT, PAGE, 1, HEAD), dtype=np.uint8)
    src = np.tile(np.arange(COUNT), 2)
    wire = Wire()
    entries = [(n % 2, there[n % 2].ctypes.data) for n in range(16)]
    assert pages.send(wire, Slice(0, HEAD, PAGE, ITEM), src, np.arange(len(src)) * 2, entries) == 0
    assert max(wire.calls) <= BATCH
    assert sum(wire.calls) == 16 * len(src)


def test_a_write_that_fails_is_what_the_engine_hears(source: np.ndarray[Any, Any]) -> None:
    pages, _ = pages_of(source)
    there = np.zeros((1, COUNT, PAGE, 2, HEAD), dtype=np.uint8)
    wire = Wire()
    wire.status = -1
    one = np.array([1])
    assert pages.send(wire, Slice(0, 2 * HEAD, PAGE, ITEM), one, one, [(0, there.ctypes.data)]) == -1


class Engine:
    """The engine's own way."""

    def __init__(self, source: np.ndarray[Any, Any]) -> None:
        self.wire, self.own = Wire(), 0
        self.engine = SimpleNamespace(batch_transfer_sync=lambda _, *blocks: self.wire(*blocks))
        self.attn_tp_size = self.pp_size = 1
        bases = [one.ctypes.data for one in source]
        self.kv_args = SimpleNamespace(
            kv_item_lens=[ITEM, ITEM],
            kv_data_ptrs=bases,
            kv_layer_ids=[],
            page_size=PAGE,
            kv_head_num=HEADS,
            engine_rank=0,
        )
        self.core = SimpleNamespace(pages=pages_of(source)[0])

    def get_mha_kv_ptrs_with_pp(self, mine: list[int], theirs: list[int]) -> Any:
        return mine[:1], mine[1:], theirs[:1], theirs[1:], 1

    def send_kvcache_slice(self, *_: Any) -> int:
        self.own += 1
        return 0


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, source: np.ndarray[Any, Any]) -> Any:
    names = ["sglang", "sglang.srt", "sglang.srt.disaggregation", "sglang.srt.disaggregation.common"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    cut, pair = types.ModuleType("staging_buffer"), types.ModuleType("utils")

    def parameters(src: int, dst: int, mine: int, theirs: int, heads: int) -> tuple[int, int, int, int]:
        count = heads // max(src, dst)
        return (theirs * count, count, 0, count) if dst >= src else (0, count, mine * count, count)

    cut.compute_head_slice_params = parameters  # type: ignore[attr-defined]
    pair.build_transfer_entry_pairs = lambda ours, theirs, *_, **__: [  # type: ignore[attr-defined]
        (place, theirs.index(layer)) for place, layer in enumerate(ours)
    ]
    monkeypatch.setitem(sys.modules, "sglang.srt.disaggregation.common.staging_buffer", cut)
    monkeypatch.setitem(sys.modules, "sglang.srt.disaggregation.utils", pair)
    return type("M", (SlicingManager, Engine), {})(source)


def sent(manager: Any, there: Any, layers: Any = None, tp: int = 2) -> int:
    ids = np.array([3, 4], dtype=np.int32)
    bases = [one.ctypes.data for one in there]
    return int(manager.send_kvcache_slice("s", ids, bases, ids, 1, tp, ITEM // tp, None, layers))


@pytest.mark.parametrize("layers", [None, [1, 0]])
def test_the_engines_way_takes_whole_pages(manager: Any, source: np.ndarray[Any, Any], layers: Any) -> None:
    """By layer ids where there are some: entry 0 is then the second on decode."""
    if layers:
        manager.kv_args.kv_layer_ids = [0, 1]
    there = np.zeros((2, COUNT, PAGE, 2, HEAD), dtype=np.uint8)
    assert sent(manager, there, layers) == 0
    assert (manager.own, manager.wire.calls) == (0, [2])
    order = [1, 0] if layers else [0, 1]
    assert (there[:, 3:5] == source[order][:, 3:5, :, 2:]).all()


@pytest.mark.parametrize("why", ["no core", "no pages", "lengths differ", "fills a part", "a defect"])
def test_whatever_is_not_whole_pages_from_here_is_the_engines_own(manager: Any, why: str) -> None:
    there = np.zeros((2, COUNT, PAGE, HEADS, HEAD), dtype=np.uint8)
    tp = 2
    if why == "no core":
        manager.core = None
    elif why == "no pages":
        manager.core.pages = None
    elif why == "lengths differ":
        manager.kv_args.kv_item_lens = [ITEM, ITEM // 2]
    elif why == "fills a part":
        manager.attn_tp_size, manager.kv_args.kv_head_num, tp = 2, HEADS // 2, 1
    else:
        manager.core.pages.send = None
    assert sent(manager, there, tp=tp) == 0
    assert (manager.own, manager.wire.calls) == (1, [])

"""Binding plans: a million blocks of unequal TP, SGLang's own path for the same blocks, and the growth curve."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pdctl_transfer.plan import Binding, Blocks, Plan, RankId, bind, make_plan
from pdctl_transfer.region import Region
from tests.bench.harness import Row, at_least, at_most, cpu_seconds, plain
from tests.oracle.installed import sglang_python
from tests.unit.layout.build import kv, single

LAYERS, HEADS, PAGE, HEAD_BYTES = 25, 8, 16, 256  # 800 blocks a page
BLOCKS_A_PAGE = 2 * LAYERS * PAGE
PAGES = 1_000_000 // BLOCKS_A_PAGE
SRC_TP, DST_TP = 4, 1


class Case(NamedTuple):
    """One prefill rank of TP 4 sending to decode TP 1: one block a token, layer and tensor."""

    plan: Plan
    src: list[Region]
    dst: list[Region]


def rows() -> Iterator[Row]:
    case = _case()
    src_pages, dst_pages = _pages(PAGES, 1), _pages(PAGES, 2)
    indices = {"kv": src_pages}, {"kv": dst_pages}
    blocks = bind(*case, *indices)
    assert len(blocks.src) == 1_000_000
    yield at_most("bind 1,000,000 blocks of unequal TP", cpu_seconds(lambda: bind(*case, *indices)) * 1e3, "ms", 50)
    binding = Binding(*case)  # as a `Part` keeps it for each pair of ranks: see `straight_blocks`
    columns = cpu_seconds(lambda: binding.blocks(*indices))
    lists = cpu_seconds(lambda: [column.tolist() for column in binding.blocks(*indices)])
    yield from _against_sglang(case, src_pages, dst_pages, blocks, columns, lists)
    for wanted in (10**4, 10**5, 10**6, 10**7):
        pages = wanted // BLOCKS_A_PAGE
        some = {"kv": _pages(pages, 1)}, {"kv": _pages(pages, 2)}
        seconds = cpu_seconds(lambda some=some: binding.blocks(*some))
        made = pages * BLOCKS_A_PAGE
        yield plain(f"bind {made:,} blocks, each", seconds / made * 1e9, "ns")


def _case() -> Case:
    part = kv(list(range(LAYERS)), heads=HEADS, page=PAGE, inner=HEAD_BYTES)
    prefill, decode = single("prefill", SRC_TP, part, layers=LAYERS), single("decode", DST_TP, part, layers=LAYERS)
    plan = make_plan(prefill, decode).between(RankId(0, 0), RankId(0, 0))
    return Case(plan, _regions(HEADS // SRC_TP), _regions(HEADS // DST_TP))


def _regions(heads: int) -> list[Region]:
    item_len = PAGE * heads * HEAD_BYTES
    return [Region((1 << 40) + i * (1 << 36), 1 << 20, item_len) for i in range(2 * LAYERS)]


def _pages(count: int, seed: int) -> np.ndarray:
    """Scattered page ids, as after a while of serving."""
    return np.random.default_rng(seed).permutation(2 * count)[:count].astype(np.int32)


def _against_sglang(
    case: Case, src_pages: np.ndarray, dst_pages: np.ndarray, blocks: Blocks, columns: float, lists: float
) -> Iterator[Row]:
    """The same blocks by SGLang's own functions, which end in lists of Python integers, as Mooncake's Python module
    takes them. Without an SGLang there is nothing to compare with, and no row.
    """
    python = sglang_python()
    if python is None:
        print("    no SGLang here (PDCTL_SGLANG_PYTHON): not compared with its own path")
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "blocks"
        asked = {
            "src_tp": SRC_TP,
            "dst_tp": DST_TP,
            "heads": HEADS,
            "page_size": PAGE,
            "layers": list(range(LAYERS)),
            "src_item_len": case.src[0].item_len,
            "dst_item_len": case.dst[0].item_len,
            "src_ptrs": [region.base for region in case.src],
            "dst_ptrs": [region.base for region in case.dst],
            "src_pages": src_pages.tolist(),
            "dst_pages": dst_pages.tolist(),
            "repeat": 5,
            "blocks": str(out),
        }
        script = Path(__file__).with_name("sglang_plan.py")
        environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [python, str(script)],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        theirs = np.fromfile(out, dtype=np.int64).reshape(3, -1)
    assert np.array_equal(_sorted(np.stack(blocks)), _sorted(theirs)), "not the same blocks as SGLang's"
    answer = json.loads(done.stdout.splitlines()[-1])
    name = f"SGLang {answer['version']}'s own path for the same blocks"
    yield plain(name, answer["cpu_seconds"] * 1e3, "ms")
    yield at_least("SGLang's own path / ours, which ends in columns", answer["cpu_seconds"] / columns, "×", 10)
    yield plain("SGLang's own path / ours with lists of Python integers", answer["cpu_seconds"] / lists, "×")


def _sorted(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, np.argsort(blocks[1], kind="stable")]

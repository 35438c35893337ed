"""A pair over Mooncake whose core has the faults that tests of real engines ask for: run with `inside/` on PYTHONPATH.

`python -m tests.integration.transfer.faulty_pair FOLDER FAULT…`: a line for each fault, in order.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pdctl_transfer.fabric.mooncake import MooncakeFabric
from pdctl_transfer.plugins.sglang_aux import Rows
from pdctl_transfer.plugins.sglang_manager import CoreRank
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, Region, Registry, SendHandle
from tests.bench.shape import Role, Shape, manifest

ITEMS, SLOW_S = 8, 1.5


def memory(role: Role, tp: int) -> tuple[Any, list[Any]]:
    """A fabric, and the regions of a rank."""
    fabric, regions = MooncakeFabric(), []
    for entry in manifest(role, Shape(tp, items=ITEMS, page=16)).stages[0].components[0].entries:
        array = np.ones((ITEMS, entry.item_len), dtype=np.uint8)
        fabric.register(array.ctypes.data, array.nbytes)
        kept.append(array)
        regions.append(Region(array.ctypes.data, *array.shape))
    return fabric, regions


def same(peer: DecodePeer) -> DecodePeer:
    """It is made already."""
    return peer


def once(prefill: CoreRank, decodes: list[CoreRank], registry: tuple[str, int], room: int) -> dict[str, Any]:
    """How one request ends on both sides, and after how long; of ranks whose half raises, on the others."""
    began, raised = time.monotonic(), {}
    handles: list[Any] = []
    ids = np.array([1, 2, 3])
    for half in (
        lambda: prefill.expect(room),
        *(partial(rank.ask, room, registry, {"kv": ids}, 0) for rank in decodes),
    ):
        try:
            handles.append(half())
        except Exception as defect:  # noqa: BLE001  whatever the fault raises is what is asked
            raised["raised"] = type(defect).__name__
    for handle in handles:
        if isinstance(handle, SendHandle):
            handle.send({"kv": [4, 5, 6]})
    ends = [one.wait(30) for one in handles]
    codes = sorted({one.failure.code for one in handles if one.failure})
    return {"ends": ends, "codes": codes, "seconds": time.monotonic() - began, **raised}


def main(folder: Path, faults: list[str]) -> None:
    """TP 1 → 2, so that rows are gathered."""
    options, registry = Options(verify="full"), Registry()
    at = "127.0.0.1", registry.port
    fabric, regions = memory("prefill", 1)
    peer = PrefillPeer(
        manifest("prefill", Shape(1, items=ITEMS, page=16)), Rank(0, 0), regions, fabric, registry=at, options=options
    )
    prefill = CoreRank(lambda: peer, (), Rows([], [], []), 16)  # as an engine's sender has it
    decodes = []
    for tp in range(2):
        fabric, regions = memory("decode", 2)
        rank = DecodePeer(manifest("decode", Shape(2, items=ITEMS, page=16)), Rank(0, tp), regions, fabric, options)
        decodes.append(CoreRank(partial(same, rank), (), Rows([], [], []), 16))
    for room, fault in enumerate(faults, 1):
        file = folder / fault
        file.write_text(str(SLOW_S))
        said = once(prefill, decodes, at, room)
        print(json.dumps({"fault": fault, "taken": not file.exists(), **said}), flush=True)
        file.unlink(missing_ok=True)


kept: list[Any] = []

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # Mooncake's threads end in their own time

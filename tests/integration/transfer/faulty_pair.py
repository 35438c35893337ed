"""A pair over Mooncake whose core has the faults that tests of real engines ask for: run with `inside/` on PYTHONPATH.

`python -m tests.integration.transfer.faulty_pair FOLDER FAULT…`: a line for each fault, in order.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pdctl_transfer.fabric.mooncake import MooncakeFabric
from pdctl_transfer.plugins.sglang_aux import Rows
from pdctl_transfer.plugins.sglang_manager import CoreRank
from pdctl_transfer.session import DecodePeer, Options, PrefillPeer, Rank, Region, Registry
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


def once(prefill: CoreRank, decodes: list[Any], registry: tuple[str, int], room: int) -> dict[str, Any]:
    """How one request ends on both sides, and after how long; where prefill's half raises, on decode alone."""
    began, raised = time.monotonic(), {}
    handles: list[Any] = []
    try:
        handles.append(prefill.expect(room))
    except Exception as defect:  # noqa: BLE001  whatever the fault raises is what is asked
        raised["raised"] = type(defect).__name__
    try:
        asked = [decode.open(room, registry, {"kv": [1, 2, 3]}) for decode in decodes]
    except Exception as defect:  # noqa: BLE001  the same
        return {"raised": type(defect).__name__}
    for handle in handles:
        handle.send({"kv": [4, 5, 6]})
    ends = [one.wait(30) for one in (*handles, *asked)]
    codes = sorted({one.failure.code for one in (*handles, *asked) if one.failure})
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
        decodes.append(
            DecodePeer(manifest("decode", Shape(2, items=ITEMS, page=16)), Rank(0, tp), regions, fabric, options)
        )
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

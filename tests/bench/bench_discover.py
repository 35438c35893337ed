"""`pdctl discover` on a tree of 16 HCAs with 256 GIDs each: CPU time of the whole process, start included."""

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.bench.harness import Row, at_most
from tests.machines import write

HCAS, GIDS = 16, 256


def crowded(root: Path) -> Path:
    """Every slot in use: each costs three reads."""
    gids = [
        [index, f"0000:0000:0000:0000:0000:ffff:0a{index:02x}:0001", ("IB/RoCE v1", "RoCE v2")[index % 2], "bond0"]
        for index in range(GIDS)
    ]
    rows = [
        {"name": f"mlx5_{n}", "at": f"pci0000:{n:02x}/0000:{n:02x}:01.0/0000:e{n:x}:00.0", "link_layer": "Ethernet"}
        for n in range(HCAS)
    ]
    return write({"hca": [{**row, "slots": GIDS, "gids": gids} for row in rows]}, root)


def _cpu_seconds(root: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "pdctl", "discover", "--root", str(root), "-o", "json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = crowded(Path(folder))
        best = min(_cpu_seconds(root) for _ in range(5))
    yield at_most(f"discover {HCAS} HCAs x {GIDS} GIDs, CPU", 1000 * best, "ms", 300)

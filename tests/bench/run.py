"""Runs every `bench_*.py` beside it, prints a table and writes `build/bench.json`."""

import importlib
import sys
import traceback
from pathlib import Path

from tests.bench.harness import Row, show, write

HERE = Path(__file__).parent


def main() -> int:
    """A missed target is `ok: false` and exit 0; a benchmark that crashes is exit 1."""
    rows: list[Row] = []
    crashed = False
    wanted = set(sys.argv[1:])
    for path in sorted(HERE.glob("bench_*.py")):
        if wanted and path.stem.removeprefix("bench_") not in wanted:
            continue
        print(f"\n{path.stem.removeprefix('bench_')}", flush=True)
        try:
            for row in importlib.import_module(f"tests.bench.{path.stem}").rows():
                rows.append(row)
                show(row)
        except Exception:  # noqa: BLE001  the outermost edge: one broken benchmark must not hide the others
            traceback.print_exc()
            crashed = True
    write(rows, "bench.json")
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())

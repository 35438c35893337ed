"""Runs every `bench_*.py` beside it, prints a table and writes `build/bench.json`."""

import importlib
import sys
import traceback
from pathlib import Path

import msgspec

from tests.bench.harness import Row

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
                mark = {None: " ", True: "✓", False: "✗"}[row.ok]
                bound = "" if row.target is None else f"   target {row.target:g}"
                print(f"  {mark} {row.name:<72} {row.value:>12.4g} {row.unit}{bound}", flush=True)
        except Exception:  # noqa: BLE001  the outermost edge: one broken benchmark must not hide the others
            traceback.print_exc()
            crashed = True
    out = Path("build/bench.json")
    out.parent.mkdir(exist_ok=True)
    out.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    return 1 if crashed else 0


if __name__ == "__main__":
    sys.exit(main())

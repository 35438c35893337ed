"""`pdctl` on a disk of its own that is full for everyone, guards included.

unshare -m python -m tests.integration.up.full_disk FOLDER KIB FLEET_FILE NAME [STEP...]

Mounts a small disk at FOLDER, which must be XDG_STATE_HOME, and prints what each step said, and what was left after it.
Steps: `up`, `down`, `fill` the disk, make `room` again, `unlock` (the lock's file goes).
"""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

from pdctl.launch import process
from pdctl.launch.state import FleetFolder


def fill(folder: Path) -> None:
    """To the last byte."""
    with (folder / "fill").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 1024)


def main(folder: str, kib: str, file: str, name: str, *steps: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k,mode=0700", "none", folder], check=True)
    words = {"up": ["up", file, "--skip-phase", "preflight"], "down": ["down", name]}
    said = []
    for step in steps:
        status, text = 0, ""
        if step in words:
            command = [sys.executable, "-m", "tests.integration.up.driver", *words[step]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            status, text = done.returncode, done.stdout + done.stderr
        elif step == "fill":
            fill(Path(folder))
        elif step == "room":
            (Path(folder) / "fill").unlink()
        else:
            (FleetFolder(name).path / "lock").unlink()
        units = [str(FleetFolder(name).units / unit) for unit in ("prefill-0", "decode-0", "router")]
        left = [found for unit in units for found in process.marked(unit)]
        said.append([status, text, len(left)])
    for found in left:
        os.kill(found.pid, 9)
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A unit that misbehaves on request: what the launcher must cope with, in one small program.

python unruly.py FLAG...
  children   start a child, and a grandchild that leaves the session and loses its parent
  deaf       ignore SIGTERM
  crash      end at once with status 3
"""

import mmap
import os
import signal
import subprocess
import sys
import time

SLEEPER = [sys.executable, "-c", "import signal; signal.pause()"]


def map_shared(name: str) -> mmap.mmap:
    """A file in /dev/shm, created if need be, mapped and never removed."""
    with open(f"/dev/shm/{name}", "a+b") as file:  # noqa: PTH123
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def main(flags: list[str]) -> None:
    print("unruly", *flags, flush=True)
    if "crash" in flags:
        sys.exit(3)
    if "deaf" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "children" in flags:
        subprocess.Popen(SLEEPER)
        stray = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
        subprocess.run([sys.executable, "-c", stray, *SLEEPER], check=True)
    if "shm" in flags:
        name = flags[flags.index("shm") + 1]
        keep = [map_shared(name), map_shared(f"{name}-lent")]
        print("mapped", len(keep), flush=True)
    print("up", os.getpid(), flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Somebody else's program at the pids that records name, in a pid namespace of its own, while `pdctl` is run there.

python -m tests.integration.up.stranger PID,... -- WORDS... [-- WORDS...]

The first process of a namespace decides which number comes next. Prints what each command said, and who still lives.
"""

import json
import subprocess
import sys
from pathlib import Path

LAST = Path("/proc/sys/kernel/ns_last_pid")


def at(pid: int) -> "subprocess.Popen[bytes]":
    """A session leader with that very pid."""
    LAST.write_text(str(pid - 1))
    found = subprocess.Popen(["sleep", "300"], start_new_session=True)
    assert found.pid == pid, f"got {found.pid} and not {pid}"
    return found


def main() -> None:
    pids, *commands = " ".join(sys.argv[1:]).split(" -- ")
    strangers = [at(int(pid)) for pid in sorted(pids.split(","), key=int)]
    said = []
    for command in commands:
        words = [sys.executable, "-m", "tests.integration.up.driver", *command.split()]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        said.append([done.returncode, done.stdout + done.stderr])
    print(json.dumps({"said": said, "alive": [one.pid for one in strangers if one.poll() is None]}))


if __name__ == "__main__":
    main()

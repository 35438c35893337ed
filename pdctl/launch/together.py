"""Several programs as one unit: all are started, and where one ends the others are ended too.

    python -m pdctl.launch.together [NAME=value…] PROGRAM WORD… --- [NAME=value…] PROGRAM WORD…

Nodes of one engine on one host: what is left of an engine that lost a node waits for it and answers nobody.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Final

from pdctl.launch.outlet import said
from pdctl.python import module

SEPARATOR: Final = "---"
GRACE_S: Final = 10
"""How long the others may take to end after SIGTERM."""
_PR_SET_PDEATHSIG: Final = 1


def together(commands: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The command line that runs these."""
    words: list[str] = []
    for command in commands:
        words += [*([SEPARATOR] if words else []), *command]
    return module(sys.executable, "pdctl.launch.together", *words)


def apart(words: Sequence[str]) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Of each command its own variables, and the program with its words."""
    rest = list(words)
    while rest:
        end = rest.index(SEPARATOR) if SEPARATOR in rest else len(rest)
        command, rest = rest[:end], rest[end + 1 :]
        begin = next((place for place, word in enumerate(command) if not _is_variable(word)), len(command))
        yield dict(word.split("=", 1) for word in command[:begin]), command[begin:]


def _is_variable(word: str) -> bool:
    name, mark, _ = word.partition("=")
    return bool(mark) and name.isidentifier()


def _tied() -> None:
    """In the child: it does not outlive this process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})


def main(words: Sequence[str]) -> int:
    """Until all have ended; the exit status of the first that did, above 128 for a signal, 0 where told to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    running: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
    told: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        del frame
        told.append(number)
        for _, child in running.values():
            child.send_signal(signal.SIGKILL if number == signal.SIGALRM else signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, pass_on)
    for place, (own, argv) in enumerate(apart(words)):
        child = subprocess.Popen(argv, env={**os.environ, **own}, preexec_fn=_tied)
        running[child.pid] = (place, child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    status = 0
    while running:
        pid, ended = os.wait()
        if pid not in running:
            continue
        place, _ = running.pop(pid)
        code = os.waitstatus_to_exitcode(ended)
        if not told:
            status = code if code >= 0 else 128 - code
            how = f"exit status {code}" if code >= 0 else f"signal {-code}"
            os.write(1, said(f"node {place} (pid {pid}) ended: {how}; the engine ends with it"))
            signal.alarm(GRACE_S)
            pass_on(signal.SIGTERM, None)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

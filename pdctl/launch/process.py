"""Processes by what cannot lie: pid and start time, parent, session, and a mark in their environment.

Read from /proc, without psutil: the guard stays small, and a start time in clock ticks since boot does not move when
the clock is set, as psutil's does.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

MARK = "PDCTL_UNIT"
"""Variable that every process of a unit inherits; its value is the unit's folder."""

_PROC = Path("/proc")


class Process(NamedTuple):
    """One row of the process table; `started` in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    started: int


def find(pid: int) -> Process | None:
    """The process with this pid, if there is one that is not a zombie."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (OSError, UnicodeDecodeError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    process = Process(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))
    return None if process.state in "ZX" else process


def is_alive(pid: int | None, started: int | None) -> bool:
    """Whether that very process still runs, not another that got its pid."""
    process = find(pid) if pid else None
    return process is not None and process.started == started


def everyone() -> list[Process]:
    """All processes but zombies."""
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [process for process in map(find, pids) if process]


def descendants(root: int) -> list[Process]:
    """Children of `root`, their children, and so on."""
    by_parent: dict[int, list[Process]] = {}
    for process in everyone():
        by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        children = by_parent.get(todo.pop(), [])
        found += children
        todo += [child.pid for child in children]
    return found


def marked(mark: str, sessions: Iterable[int] = ()) -> list[Process]:
    """Processes of a unit wherever they went: by the mark, or by the session they still belong to.

    Both, because a process that sets its own title (SGLang's schedulers do) may overwrite its environment.
    """
    wanted = f"{MARK}={mark}".encode()
    held = set(sessions)
    return [process for process in everyone() if process.session in held or wanted in _environment(process.pid)]


def _environment(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def shared_memory(processes: Iterable[Process]) -> set[Path]:
    """Files in /dev/shm that these processes have mapped: what stays behind if they cannot remove it themselves."""
    return {path for process in processes for path in _mapped(process.pid)}


def unlink_unused(paths: Iterable[Path]) -> None:
    """Remove files in shared memory that are ours and that no process maps any more."""
    mine = {path for path in paths if path.exists() and path.stat().st_uid == os.getuid()}
    if mine:
        mine -= shared_memory(everyone())
    for path in mine:
        path.unlink(missing_ok=True)


def _mapped(pid: int) -> set[Path]:
    try:
        lines = (_PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()
    found = {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}
    return {Path(name) for name in found if not name.endswith(" (deleted)")}


def send(process: Process, number: signal.Signals) -> None:
    """Signal that very process; one that is gone, or whose pid now is another's, gets nothing."""
    if is_alive(process.pid, process.started):
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            pass


def boot_id() -> str:
    """Changes with every boot, so that pids of an earlier one are not taken for ours."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()

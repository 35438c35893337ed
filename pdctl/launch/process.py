"""Processes by what cannot lie: pid and start time, parent, session, and a mark in their environment.

Read from /proc, without psutil: the guard stays small, and a start time in clock ticks since boot does not move when
the clock is set, as psutil's does. What makes a process ours is decided in `identity`.
"""

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pdctl.launch import cgroup
from pdctl.launch.identity import Here, Mark, Seen

MARK = "PDCTL_UNIT"
"""Variable that every process of a unit inherits; its value is the unit's folder, so its fleet and its name."""

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


def is_frozen(pid: int | None) -> bool:
    """Whether a signal has stopped it."""
    process = find(pid) if pid else None
    return process is not None and process.state == "T"


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


class Row(NamedTuple):
    """A process with the marks that it carries: a unit's folder, and a cgroup that may be a unit's."""

    process: Process
    leader: int | None
    folder: str | None
    cgroups: str


def table() -> list[Row]:
    """Every process but this one."""
    found = {process.pid: process for process in everyone()}
    return [_row(process, found.get(process.session)) for process in found.values() if process.pid != os.getpid()]


def seen(rows: Iterable[Row], folder: str) -> list[Seen]:
    """These processes as seen from the unit with that folder."""
    tag = cgroup.name_of(folder)
    return [
        Seen(one.process.pid, one.process.started, one.process.session, one.leader, _mark(one, folder, tag))
        for one in rows
    ]


def look_at(pid: int, folder: str) -> Seen | None:
    """One process as seen from the unit with that folder, if it is there."""
    process = find(pid)
    return seen([_row(process, find(process.session))], folder)[0] if process else None


def marked(folder: str) -> list[Seen]:
    """Processes that carry a unit's mark, wherever they went."""
    return [one for one in seen(table(), folder) if one.mark == "this"]


def _row(process: Process, leader: Process | None) -> Row:
    start = f"{MARK}=".encode()
    found = next((entry for entry in _environment(process.pid) if entry.startswith(start)), None)
    folder = None if found is None else os.fsdecode(found[len(start) :])
    return Row(process, leader.started if leader else None, folder, cgroup.path_of(process.pid))


def _mark(row: Row, folder: str, tag: str | None) -> Mark:
    """The environment may be cleared by whoever has it; the cgroup cannot."""
    if tag is not None and tag in row.cgroups.split("/"):
        return "this"
    if row.folder is None:
        return "none"
    return "this" if row.folder == folder and _same_folder(row.process.pid, folder) else "other"


def _same_folder(pid: int, folder: str) -> bool:
    """Whether the process means the same folder by that path: in another container it may be another fleet's.

    A process with a root of its own, where the path leads nowhere, counts if it shares our pid namespace.
    """
    try:
        theirs = (_PROC / str(pid) / "root" / folder.lstrip("/")).stat()
        mine = Path(folder).stat()
    except FileNotFoundError:
        return _namespace_of(str(pid)) == _namespace_of("self")
    except OSError:
        return False
    return (theirs.st_dev, theirs.st_ino) == (mine.st_dev, mine.st_ino)


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


def send(process: Process | Seen, number: signal.Signals) -> None:
    """Signal that very process; one that is gone, or whose pid now is another's, gets nothing.

    The handle is taken first and the start time read after: whoever has the pid by then is not who the handle means.
    """
    handle = _open(process.pid)
    try:
        if not is_alive(process.pid, process.started):
            return
        with suppress(ProcessLookupError, PermissionError):  # who cannot be signalled is found alive afterwards
            if handle is None:
                os.kill(process.pid, number)
            else:
                signal.pidfd_send_signal(handle, number)
    finally:
        if handle is not None:
            os.close(handle)


def await_end(process: Process | Seen, timeout_s: float) -> None:
    """Wait until that process is gone, or the time is up."""
    handle, ends = _open(process.pid), time.monotonic() + timeout_s
    try:
        while is_alive(process.pid, process.started) and (left := ends - time.monotonic()) > 0:
            if handle is None:
                time.sleep(min(left, 0.05))
            else:
                select.select([handle], [], [], left)
    finally:
        if handle is not None:
            os.close(handle)


def _open(pid: int) -> int | None:
    """A handle on the process; None where it is gone, or where a sandbox knows no such handles."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def here() -> Here:
    """The boot and the pid namespace in which this process reads pids.

    A boot id is not enough, it is the host's in every container. Nor is the number of a namespace, which is given again
    when one ends: so it comes with the start time of its first process.
    """
    first = find(1)
    return Here(boot_id(), f"{_namespace_of('self')} since {first.started if first else '?'}")


def _namespace_of(pid: str) -> str | None:
    try:
        return str((_PROC / pid / "ns/pid").readlink())
    except OSError:
        return None


def boot_id() -> str:
    """Changes with every boot, so that pids of an earlier one are not taken for ours."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()

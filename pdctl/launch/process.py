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


def look(mark: str) -> list[Seen]:
    """Every process but this one, with the mark that it carries as seen from the unit whose mark is `mark`."""
    table, tag = {process.pid: process for process in everyone()}, _Tag(mark, cgroup.name_of(mark))
    return [_seen(process, table, tag) for process in table.values() if process.pid != os.getpid()]


def look_at(pid: int, mark: str) -> Seen | None:
    """One process, if it is there."""
    process = find(pid)
    if process is None:
        return None
    leader = find(process.session)
    return _seen(process, {leader.pid: leader} if leader else {}, _Tag(mark, cgroup.name_of(mark)))


def marked(mark: str) -> list[Seen]:
    """Processes that carry a unit's mark, wherever they went."""
    return [seen for seen in look(mark) if seen.mark == "this"]


class _Tag(NamedTuple):
    """The two marks of a unit: the value in its environment, and the name of its cgroup."""

    folder: str
    cgroup: str | None


def _seen(process: Process, table: dict[int, Process], tag: _Tag) -> Seen:
    leader = table.get(process.session)
    return Seen(
        process.pid, process.started, process.session, leader.started if leader else None, _mark(process.pid, tag)
    )


def _mark(pid: int, tag: _Tag) -> Mark:
    """The environment may be cleared by whoever has it; the cgroup cannot."""
    if tag.cgroup is not None and cgroup.found(pid, tag.cgroup) is not None:
        return "this"
    found = next((entry for entry in _environment(pid) if entry.startswith(f"{MARK}=".encode())), None)
    if found is None:
        return "none"
    return "this" if found == f"{MARK}={tag.folder}".encode() and _same_folder(pid, tag.folder) else "other"


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

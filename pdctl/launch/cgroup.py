"""A unit's own cgroup (v2), where one can be made: neither forking nor an empty environment leads out of it.

Only this file knows the file system of cgroups. Whether it can be used is found out by trying: a container's is most
often read-only, and a login session's belongs to root.
"""

import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_PROC = Path("/proc")


def name_of(folder: str) -> str | None:
    """The name of the cgroup of the unit with that folder; None where the folder is gone.

    The folder's own number is in it: another container may have another fleet in a folder of the same name.
    """
    try:
        about = Path(folder).stat()
    except OSError:
        return None
    return "pdctl-" + sha256(f"{folder}\0{about.st_dev}\0{about.st_ino}".encode()).hexdigest()[:20]


def located(mounts: str, cgroups: str) -> Path | None:
    """The folder of a process's cgroup, from its /proc/PID/cgroup and our /proc/self/mountinfo; None without one."""
    path = next((line[3:] for line in cgroups.splitlines() if line.startswith("0::/")), None)
    if path is None or ".." in path.split("/"):
        return None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if not after.startswith("cgroup2 "):
            continue
        root, point = before.split()[3:5]
        if Path(path).is_relative_to(root):
            return Path(point.encode().decode("unicode_escape")) / Path(path).relative_to(root)
    return None


def make(folder: str) -> Path | None:
    """An own cgroup for the unit with that folder, below the caller's; None where none can be made and entered."""
    parent, name = _folder_of("self"), name_of(folder)
    if parent is None or name is None:
        return None
    path = parent / name
    try:
        path.mkdir(exist_ok=True)
    except OSError:
        return None
    if (path / "cgroup.kill").exists() and _can_enter(path):
        return path
    remove(path)
    return None


def enter(path: Path) -> None:
    """Move the calling process in. Raises OSError."""
    (path / "cgroup.procs").write_text("0")


def members(path: Path) -> list[int]:
    """Pids of all processes in it and below it."""
    found = []
    for listing in path.rglob("cgroup.procs"):
        with suppress(OSError):
            found += [int(pid) for pid in listing.read_text().split()]
    return found


def kill(path: Path) -> None:
    """SIGKILL to all of it in one step, whatever forks meanwhile."""
    with suppress(OSError):
        (path / "cgroup.kill").write_text("1")


def remove(path: Path) -> None:
    """Remove it once it is empty, with what the unit made below it."""
    with suppress(OSError):
        for below in sorted((entry for entry in path.rglob("*") if entry.is_dir()), reverse=True):
            below.rmdir()
        path.rmdir()


def path_of(pid: int) -> str:
    """The process's cgroup, as a path from the root of them; empty where there is none."""
    return next((line[3:] for line in _text(f"{pid}/cgroup").splitlines() if line.startswith("0::/")), "")


def found(pid: int, name: str) -> Path | None:
    """The cgroup of that name that holds the process, at any depth; None if it is in none."""
    place = _folder_of(str(pid))
    return next((one for one in (place, *place.parents) if one.name == name), None) if place else None


def _can_enter(path: Path) -> bool:
    """Whether a process may be moved there: a child tries, so that nobody has to be moved back."""
    child = os.fork()
    if child == 0:
        try:
            enter(path)
        except OSError:
            os._exit(1)
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _folder_of(pid: str) -> Path | None:
    return located(_text("self/mountinfo"), _text(f"{pid}/cgroup"))


def _text(name: str) -> str:
    try:
        return (_PROC / name).read_text(errors="replace")
    except OSError:
        return ""

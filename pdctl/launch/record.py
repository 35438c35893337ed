"""Small state files: written whole or not at all, and never believed when damaged."""

import errno
from pathlib import Path
from typing import TypeVar

import msgspec

from pdctl import files
from pdctl.errors import PdctlError
from pdctl.launch.identity import Claim, Here

T = TypeVar("T")


class StateError(PdctlError):
    """A state file that cannot be used."""

    exit_code = 2
    code = "PD3005"


_REMEDIES = {
    errno.ENOSPC: "make room there, or set XDG_STATE_HOME to a folder with room",
    errno.EDQUOT: "your quota is used up: make room there, or set XDG_STATE_HOME to a folder with room",
    errno.EFBIG: "files may not grow (`ulimit -f`): make room there, or set XDG_STATE_HOME to another folder",
    errno.EROFS: "that file system is read-only: set XDG_STATE_HOME to a folder that you may write",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENOTDIR: "something on the way there is no folder: move it, or set XDG_STATE_HOME to another",
}


class UnwritableError(PdctlError):
    """A folder that takes no state."""

    code = "PD3016"

    def __init__(self, folder: Path, error: OSError) -> None:
        reason = (error.strerror or str(error)).lower()
        hint = _REMEDIES.get(error.errno or 0, "set XDG_STATE_HOME to a folder that you may write")
        super().__init__(f"{folder}: cannot keep state here: {reason}", hint=hint)


class Exit(msgspec.Struct, frozen=True):
    """How a process ended: an exit status, or the signal that killed it."""

    status: int | None
    signal: str | None
    at: float

    def __str__(self) -> str:
        return f"killed by {self.signal}" if self.signal else f"exit status {self.status}"


class UnitRecord(msgspec.Struct, frozen=True):
    """What a guard knows of its unit; `started` and `guard_started` in clock ticks since boot `boot`."""

    unit: str
    role: str
    state: str
    digest: str
    boot: str
    guard_pid: int
    guard_started: int
    pid: int | None = None
    started: int | None = None
    since: float = 0.0
    restarts: int = 0
    last_exit: Exit | None = None
    namespace: str = ""
    """The pid namespace in which the numbers hold; empty in records of earlier versions."""
    cgroup: str | None = None
    """The folder of the unit's own cgroup; None where none can be made."""

    @property
    def claim(self) -> Claim:
        """What it says of who is ours."""
        here = Here(self.boot, self.namespace)
        return Claim(here, self.guard_pid, self.guard_started, self.pid, self.started)


def write(path: Path, record: msgspec.Struct) -> None:
    """Replace the file in one step: a reader sees the old state or the new one. Raises OSError."""
    content = msgspec.json.format(msgspec.json.encode(record), indent=2)
    files.replace(path, content + b"\n")


def read(path: Path, kind: type[T]) -> T | None:
    """The record, or None where there is none. Raises StateError (PD3005) for one that is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StateError(f"{path}: the state file is damaged: {error}") from None

"""What a unit writes, from a pipe into a log with a limit.

The log does not fill the disk, and a disk that is full all the same does not stop the unit.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

KEPT = 2
"""Earlier logs that are kept beside the current one, as `unit.log.1` and `unit.log.2`."""
_CHUNK = 1 << 16
_AT_ONCE = 1 << 20
"""Bytes that are passed on before the guard looks at its signals again; the size of the pipe, where it may be set."""


def shift(log: Path, kept: int = KEPT) -> None:
    """Make room for a new log: the current one becomes `.1`, and so on; the oldest goes. Raises OSError."""
    names = [log, *(log.with_name(f"{log.name}.{number}") for number in range(1, kept + 1))]
    for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
        if newer.exists():
            newer.replace(older)


def said(text: str) -> bytes:
    """A line of the guard's own."""
    return f"pdctl-guard {time.strftime('%Y-%m-%dT%H:%M:%S')}  {text}\n".encode()


class RotatingLog:
    """A file that is begun anew when it is full. No write raises: what the disk does not take is counted, and said."""

    def __init__(self, path: Path, descriptor: int, limit: int) -> None:
        """`descriptor`: the open file; it stays the same number when a new file is begun. `limit` in bytes."""
        self.path, self.descriptor, self.limit = path, descriptor, limit
        self._size = os.fstat(descriptor).st_size
        self._lost = 0

    def write(self, content: bytes) -> None:
        """Append; a new file begins at the end of a line where there is one."""
        while content:
            part = self._fitting(content)
            if part:
                self._append(part)
                content = content[len(part) :]
            else:
                self._begin_anew()

    def say(self, text: str) -> None:
        """A line of the guard's own."""
        self.write(said(text))

    def _fitting(self, content: bytes) -> bytes:
        room = max(self.limit - self._size, 0)
        if len(content) <= room:
            return content
        lines = content[: content.rfind(b"\n", 0, room) + 1]
        return lines or (b"" if self._size else content[: self.limit])

    def _append(self, part: bytes) -> None:
        if self._lost:
            missing = f"pdctl-guard: {self._lost} bytes are missing here, the disk took nothing\n".encode()
            if self._put(missing) < len(missing):
                self._lost += len(part)
                return
            self._lost = 0
        self._lost = len(part) - self._put(part)

    def _put(self, part: bytes) -> int:
        """How many bytes the file took."""
        taken = 0
        with suppress(OSError):
            while taken < len(part):
                taken += os.write(self.descriptor, part[taken:])
        self._size += taken
        return taken

    def _begin_anew(self) -> None:
        """A new file in the place of the full one; where none can be made, the full one is emptied."""
        fresh = self.path.with_name(f".{self.path.name}.new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                shift(self.path)
                fresh.replace(self.path)
                os.dup2(descriptor, self.descriptor, inheritable=False)
            finally:
                os.close(descriptor)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.descriptor, 0)
        self._size = 0


class Outlet:
    """The pipe that a unit's processes write to."""

    def __init__(self, log: RotatingLog) -> None:
        self.log = log
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        with suppress(OSError):
            fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, _AT_ONCE)

    def pass_on(self) -> None:
        """Write to the log what has come, at most a pipe's worth, so that signals are not kept waiting."""
        passed = 0
        while passed < _AT_ONCE:
            try:
                content = os.read(self.reader, _CHUNK)
            except BlockingIOError:
                return
            self.log.write(content)
            passed += len(content)

"""Logs of units, printed once or followed; those of several units by time, each line with its unit."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from pdctl.up.lines import LONGEST, lines_of, start_of_last
from pdctl.up.merged import in_order, offset_since, time_before

POLL_S = 0.2
MOST_AT_ONCE = 10_000
"""Lines of a log that are taken up before the others have their turn."""

Write = Callable[[str], None]


def print_logs(
    logs: Mapping[str, Path], lines: int | None, write: Write, since: float | None = None, longest: int = LONGEST
) -> dict[str, int]:
    """Write each log, or its last lines, or what is not older than `since`; how far each was read.

    Logs may be larger than memory; lines are cut after `longest` bytes. A log without any time is written whole.
    """
    now = datetime.now()
    read = {name: _Reader(path, lines, since, now, longest) for name, path in logs.items() if path.exists()}
    if len(logs) == 1:
        for one in read.values():
            for line in one:
                write(line)
    else:
        begin = {name: time_before(one.path, one.offset, now) for name, one in read.items()}
        for name, line in in_order(read, now, begin):
            write(_labelled(name, line, logs))
    return dict.fromkeys(logs, 0) | {name: one.offset for name, one in read.items()}


class _Reader:
    """The last lines of a log, or those from a moment on; `offset` is how far it was read."""

    def __init__(self, path: Path, lines: int | None, since: float | None, now: datetime, longest: int) -> None:
        self.path = path
        self.longest = longest
        last = _offset_of_last(path, lines) if lines is not None else 0
        self.offset = max(last, (offset_since(path, since, now) or 0) if since is not None else 0)

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for line in lines_of(file, self.longest):
                self.offset += line.size
                yield line.text


def _offset_of_last(path: Path, lines: int) -> int:
    with path.open("rb") as file:
        return start_of_last(file, lines)


def follow_logs(logs: Mapping[str, Path], offsets: Mapping[str, int], write: Write, say: Write) -> None:
    """Write what is added to the logs, whole lines only, until interrupted. One that is begun anew is read anew: under
    its name when it was moved away, from its start when it was cut; `say` is told."""
    tails = {name: Tail(path, offsets[name]) for name, path in logs.items()}
    while True:
        now = datetime.now()
        added = {name: tail.added() for name, tail in tails.items()}
        for name, line in in_order(added, now) if len(logs) > 1 else ((n, line) for n in added for line in added[n]):
            write(_labelled(name, line, logs))
        for name, tail in tails.items():
            if tail.anew:
                tail.anew = False
                say(f"{name}: its log was begun anew: {tail.path}")
        time.sleep(POLL_S)


class Tail:
    """A log that is followed. It is kept open, so that what was written before it was moved away is read to its end."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path, self.offset, self.anew = path, offset, False
        self._file: BinaryIO | None = None

    def added(self) -> list[str]:
        """Whole lines that were written since this was last asked; none of what cannot be read now."""
        try:
            self._file = file = self._file or self.path.open("rb")
            if os.fstat(file.fileno()).st_size < self.offset:
                self.offset, self.anew = 0, True
            lines = self._lines(file)
            if len(lines) < MOST_AT_ONCE and self._is_moved(file):
                file.close()
                self._file, self.offset, self.anew = None, 0, True
        except OSError:
            return []
        return lines

    def _lines(self, file: BinaryIO) -> list[str]:
        added = []
        file.seek(self.offset)
        for line in lines_of(file):
            if not line.whole and line.size < LONGEST:
                break  # it is still being written
            added.append(line.text)
            self.offset += line.size
            if len(added) == MOST_AT_ONCE:
                break
        return added

    def _is_moved(self, file: BinaryIO) -> bool:
        """Whether the name stands for another file now."""
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


def _labelled(name: str, line: str, logs: Mapping[str, Path]) -> str:
    return f"{name:<{max(map(len, logs))}}  {line}" if len(logs) > 1 else line

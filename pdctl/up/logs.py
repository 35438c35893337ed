"""Logs of units, printed once or followed."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

POLL_S = 0.2

Write = Callable[[str], None]


def print_logs(logs: Mapping[str, Path], lines: int | None, write: Write) -> dict[str, int]:
    """Write each log, or its last lines; how far each was read. Logs may be larger than memory."""
    offsets = dict.fromkeys(logs, 0)
    for name, path in logs.items():
        if not path.exists():
            continue
        with path.open("rb") as file:
            for line in file if lines is None else deque(file, maxlen=lines):
                write(_labelled(name, line.decode("utf-8", "replace").rstrip("\r\n"), logs))
            offsets[name] = file.tell()
    return offsets


def follow_logs(logs: Mapping[str, Path], offsets: dict[str, int], write: Write) -> None:
    """Write what is added to the logs, whole lines only, until interrupted. A log that is begun anew is read anew."""
    while True:
        for name, path in logs.items():
            if path.exists() and path.stat().st_size < offsets[name]:
                offsets[name] = 0
            content = _read(path, offsets[name])
            whole = content[: content.rfind(b"\n") + 1]
            offsets[name] += len(whole)
            for line in whole.decode("utf-8", "replace").splitlines():
                write(_labelled(name, line, logs))
        time.sleep(POLL_S)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def _labelled(name: str, line: str, logs: Mapping[str, Path]) -> str:
    return f"{name:<{max(map(len, logs))}}  {line}" if len(logs) > 1 else line

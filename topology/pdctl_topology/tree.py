"""Where a machine's files are read from: a folder (`/`, or a copy of another machine's), or a capture.

A file that is missing and one that the kernel refuses to read (EINVAL for an unused `gid_attrs` slot, ENODATA,
EACCES) are both None: sysfs of real machines is full of them.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

LONGEST_READ = 1 << 20
"""Bytes taken from one file: a table of TCP sockets is the longest that is read."""


class Tree(Protocol):
    """Files of one machine. Paths are absolute on that machine."""

    def read(self, path: str) -> str | None:
        """The file's text without surrounding blanks; None where it cannot be read."""

    def read_all(self, path: str, names: Iterable[str] | None = None) -> Mapping[str, str | None]:
        """Files of one folder by name: those named, or all. One call, since a port may hold a thousand of them."""

    def names(self, path: str) -> tuple[str, ...] | None:
        """Entries of a folder, sorted; None where it cannot be read."""

    def real(self, path: str) -> str | None:
        """The path with every link followed; None where it does not exist."""


class FolderTree:
    """The files below `root`."""

    def __init__(self, root: str | Path = "/") -> None:
        self._root = os.path.realpath(root).rstrip("/")

    def read(self, path: str) -> str | None:
        return _read(self._root + path, None)

    def read_all(self, path: str, names: Iterable[str] | None = None) -> Mapping[str, str | None]:
        try:
            folder = os.open(self._root + path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return {}
        try:
            wanted = os.listdir(folder) if names is None else names  # noqa: PTH208 (by handle)
            return {name: _read(name, folder) for name in wanted}
        finally:
            os.close(folder)

    def names(self, path: str) -> tuple[str, ...] | None:
        try:
            return tuple(sorted(os.listdir(self._root + path)))  # noqa: PTH208 (names only)
        except OSError:
            return None

    def real(self, path: str) -> str | None:
        try:
            return os.path.realpath(self._root + path, strict=True).removeprefix(self._root) or "/"
        except OSError:
            return None


def _read(name: str, folder: int | None) -> str | None:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    try:
        data = os.read(handle, 4096)
        # sysfs gives a value in one piece; the longer tables of /proc come page by page
        while len(data) % 4096 == 0 and data and len(data) < LONGEST_READ and (more := os.read(handle, 65536)):
            data += more
    except OSError:
        return None
    finally:
        os.close(handle)
    return data.decode("utf-8", "replace").strip()


class Capture(Struct, frozen=True):
    """What `pdctl_topology.capture` wrote on a machine: files, folders, followed links."""

    files: Mapping[str, str | None]
    folders: Mapping[str, tuple[str, ...]]
    links: Mapping[str, str]


class CaptureTree:
    """The files of a capture. Only what the capture names can be read; that is all the readers ask for."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def read(self, path: str) -> str | None:
        return self._capture.files.get(path)

    def read_all(self, path: str, names: Iterable[str] | None = None) -> Mapping[str, str | None]:
        wanted = self._capture.folders.get(path, ()) if names is None else names
        return {name: self._capture.files.get(f"{path}/{name}") for name in wanted}

    def names(self, path: str) -> tuple[str, ...] | None:
        return self._capture.folders.get(path)

    def real(self, path: str) -> str | None:
        return self._capture.links.get(path)

"""What a unit's processes listen on, by the kernel's own tables: also what nobody declared."""

import ipaddress
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
_LISTEN: Final = "0A"
_INODE: Final = re.compile(r"socket:\[(\d+)\]")


class Listener(NamedTuple):
    """A TCP socket that takes connections."""

    address: str
    port: int

    @property
    def is_open(self) -> bool:
        """Whether others than this host's own processes reach it."""
        return not ipaddress.ip_address(self.address).is_loopback


def listeners(pid: int | None, proc: Path = PROC) -> tuple[Listener, ...]:
    """Of a process and its descendants, by port. Empty where there is none, or it is somebody else's."""
    if pid is None:
        return ()
    inodes = {inode for one in _family(pid, proc) for inode in _sockets(one, proc)}
    found: set[Listener] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):  # of its own network namespace
            rows = (proc / str(pid) / "net" / name).read_text()
            found |= {listener for inode, listener in table(rows) if inode in inodes}
    return tuple(sorted(found, key=lambda one: (one.port, one.address)))


def table(text: str) -> Iterator[tuple[str, Listener]]:
    """Inode and address of each listening socket in a table of /proc/net/tcp or tcp6."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            address, _, port = fields[1].partition(":")
            yield fields[9], Listener(_address(address), int(port, 16))


def _address(text: str) -> str:
    """Words of 32 bits in the host's order (little-endian) → an address."""
    words = bytes.fromhex(text)
    raw = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    address = ipaddress.ip_address(raw)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _sockets(pid: int, proc: Path) -> Iterable[str]:
    found = set()
    with suppress(OSError):
        for entry in os.scandir(proc / str(pid) / "fd"):
            with suppress(OSError):
                match = _INODE.fullmatch(str(Path(entry.path).readlink()))
                if match:
                    found.add(match[1])
    return found


def _family(pid: int, proc: Path) -> set[int]:
    """The process and all that descend from it."""
    family, waiting = {pid}, [pid]
    while waiting:
        one = waiting.pop()
        with suppress(OSError):
            for task in os.scandir(proc / str(one) / "task"):
                with suppress(OSError, ValueError):
                    children = {int(word) for word in (Path(task.path) / "children").read_text().split()}
                    waiting += children - family
                    family |= children
    return family

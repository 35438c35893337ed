"""What the kernel knows of this process's transports: evidence that does not depend on what a library says of itself.

RDMA holds a verbs device open. TCP shows in the acknowledged bytes of the process's sockets, and in its listeners.
"""

import os
import socket
import struct
from pathlib import Path
from typing import Final

ACKED_AT: Final = 120
"""Offset of tcpi_bytes_acked in Linux's `struct tcp_info`."""
LISTEN: Final = "0A"
ANYWHERE: Final = frozenset({"00000000", "0" * 32})


def _descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they are, as far as they still are."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  a name each, no Path needed
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:
            pass  # closed meanwhile
    return found


def holds_verbs() -> bool:
    """Whether this process holds an RDMA device open, as any RDMA transport must."""
    return any("/infiniband/uverbs" in target for target in _descriptors().values())


def has_verbs() -> bool:
    """Whether this machine has an RDMA device at all."""
    devices = Path("/sys/class/infiniband")
    return devices.is_dir() and any(devices.iterdir())


def has_gpu() -> bool:
    """Whether this machine has a GPU that CUDA can use: its driver's device."""
    return Path("/dev/nvidiactl").exists()


def open_listeners() -> frozenset[int]:
    """TCP ports on which this process listens at every interface."""
    inodes = {target[8:-1] for target in _descriptors().values() if target.startswith("socket:[")}
    ports = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if fields[3] == LISTEN and address in ANYWHERE and fields[9] in inodes:
                ports.add(int(port, 16))
    return frozenset(ports)


def tcp_bytes_acked() -> int:
    """Bytes that the peers of this process's TCP sockets have acknowledged, over all sockets."""
    total = 0
    for fd, target in _descriptors().items():
        if not target.startswith("socket:["):
            continue
        try:
            with socket.socket(fileno=os.dup(fd)) as sock:
                if sock.type == socket.SOCK_STREAM and sock.family in (socket.AF_INET, socket.AF_INET6):
                    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("Q", info, ACKED_AT)[0] if len(info) >= ACKED_AT + 8 else 0
        except OSError:
            pass  # closed meanwhile, or no TCP
    return total

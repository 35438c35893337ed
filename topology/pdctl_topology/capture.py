"""Writes down, as one JSON document, every file that the readers of this package read on a machine.

It is sent to a host's own `python3` on standard input, so it stands alone: standard library only, Python 3.7 and
later, nothing imported from here. `python3 capture.py [ROOT]` makes a document to attach to a report.
"""

# ruff: noqa: PTH123, PTH207, PTH208 (plain os and glob: it runs on whatever Python a host has)

from __future__ import annotations

import glob
import json
import os
import socket
import sys
import time
from typing import Any

HCA = "/sys/class/infiniband/*"
PORT = HCA + "/ports/*"

FILES = [
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/osrelease",
    *("/proc/net/" + name for name in ("route", "fib_trie", "if_inet6", "tcp", "tcp6")),
    *("/proc/" + name for name in ("modules", "meminfo", "self/limits", "self/status", "self/cgroup")),
    "/proc/sys/net/ipv4/ip_local_port_range",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/gpus/*/information",
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    *("/sys/class/net/*/" + name for name in ("mtu", "operstate", "speed", "bonding/slaves", "bonding/mode")),
    *(HCA + "/" + name for name in ("node_type", "hca_type", "board_id", "fw_ver", "node_guid", "parent")),
    *(HCA + "/device/" + name for name in ("numa_node", "sriov_numvfs")),
    *(PORT + "/" + name for name in ("state", "phys_state", "rate", "lid", "link_layer")),
    *(PORT + "/gid_attrs/" + name for name in ("types/*", "ndevs/*")),
    "/sys/class/infiniband_verbs/*/ibdev",
    *("/sys/bus/pci/devices/*/" + name for name in ("class", "vendor", "device", "numa_node")),
    *("/sys/devices/system/node/node*/" + name for name in ("cpulist", "meminfo", "hugepages/*/free_hugepages")),
]
FOLDERS = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/dev/infiniband",
    "/sys/class/net",
    "/sys/bus/pci/devices",
    "/proc/driver/nvidia/gpus",
    "/sys/devices/system/node",
    "/sys/devices/system/node/node*/hugepages",
    HCA + "/ports",
    HCA + "/device/net",
]
# folders of which every file is kept, unreadable ones too
TABLES = [PORT + "/" + name for name in ("gids", "pkeys", "counters", "hw_counters")]
LINKS = [HCA + "/device", HCA + "/device/driver", HCA + "/device/physfn", "/sys/bus/pci/devices/*", "/dev"]
LONGEST = 1 << 20


def read(path: str) -> str | None:
    """The file's text, at most LONGEST bytes; None where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(LONGEST).decode("utf-8", "replace").strip()
    except OSError:
        return None


def capture(root: str) -> dict[str, Any]:
    """Files, folders and followed links below `root`, by their path on the machine."""
    root = os.path.realpath(root).rstrip("/")

    def found(pattern: str) -> list[str]:
        return sorted(path[len(root) :] for path in glob.glob(glob.escape(root) + pattern))

    folders = {path: sorted(os.listdir(root + path)) for pattern in FOLDERS + TABLES for path in found(pattern)}
    files: dict[str, str | None] = {}
    for pattern in FILES:
        for path in found(pattern):
            text = read(root + path)
            if text is not None:
                files[path] = text
    for pattern in TABLES:
        for folder in found(pattern):
            for name in folders[folder]:
                files[folder + "/" + name] = read(root + folder + "/" + name)
    links = {path: os.path.realpath(root + path)[len(root) :] or "/" for pattern in LINKS for path in found(pattern)}
    return {"files": files, "folders": folders, "links": links}


def shared_memory(root: str) -> int | None:
    """Size of /dev/shm in bytes; None where there is none."""
    try:
        stat = os.statvfs(root + "/dev/shm")
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize


def resolved(name: str) -> list[str]:
    """What the machine's own name resolves to: an engine that asks for its address gets this."""
    try:
        return sorted({str(item[4][0]) for item in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def main() -> None:
    """Print the capture of ROOT, with the facts that are no files."""
    started = time.time()
    root = sys.argv[1] if len(sys.argv) > 1 else "/"
    document = capture(root)
    document["shared_memory"] = shared_memory(root.rstrip("/"))
    document["own_addresses"] = resolved(socket.gethostname())
    document["clock"] = [started, time.time()]
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()

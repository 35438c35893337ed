"""The far end of a probe: runs on a host in the engine's Python, opens one fabric, sends, receives, checks.

Commands come as JSON lines on standard input, answers go as JSON lines to what was standard output; libraries that
print get standard error instead, which the controller reads for evidence. It ends when its input ends. It stands on
`pdctl_transfer.fabric` alone.
"""

import base64
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

from pdctl_transfer.errors import TransferError
from pdctl_transfer.fabric.base import Blocks, Deadline

POISON = 0xA5
TAIL = 64
"""Bytes behind the destination for the small writes that measure latency."""
BULK = 16 << 20
"""Bytes behind those for the large blocks that measure bandwidth: a layout's own may be too small to fill a link."""
BULK_BLOCK = 1 << 20
FAST = 0.05
"""Seconds: one large block that takes longer is enough."""
REACH_TIMEOUT = 3.0
ROUND_TRIPS = 15


class Agent:
    """One fabric with a buffer to send from and one to receive into."""

    def open(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Start the fabric; answer with its address and where it can be reached."""
        self.src = np.zeros(max(ask["src_bytes"], BULK), dtype=np.uint8)
        self.dst = np.zeros(ask["dst_bytes"] + TAIL + BULK, dtype=np.uint8)
        self.seed: int | None = None
        self.fabric = _fabric(ask)
        self.fabric.register(self.src.ctypes.data, self.src.nbytes)
        self.fabric.register(self.dst.ctypes.data, self.dst.nbytes)
        self.peers: dict[str, Any] = {}
        self.listener = socket.create_server(("", 0), backlog=64)
        threading.Thread(target=_answer, args=(self.listener,), daemon=True).start()
        return {
            "address": base64.b64encode(self.fabric.address()).decode(),
            "base": self.dst.ctypes.data,
            "tail": self.dst.ctypes.data + ask["dst_bytes"],
            "host": ask["host"],
            "port": self.listener.getsockname()[1],
        }

    def prepare(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Make what will arrive tell from what was there."""
        self.dst[:] = POISON
        return {}

    def send(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Connect, measure small writes, then write all blocks once."""
        reach = _reach(ask["to"]["host"], ask["to"]["port"])
        if reach is not None:
            return {"fault": reach}
        self._fill(ask["seed"])
        peer = self._peer(ask["to"]["address"])
        blocks = Blocks(
            np.asarray(ask["src"], dtype=np.int64) + self.src.ctypes.data,
            np.asarray(ask["dst"], dtype=np.int64) + ask["to"]["base"],
            np.asarray(ask["length"], dtype=np.int64),
        )
        deadline = Deadline(ask["deadline"])
        before = counters()
        trips = []
        word = Blocks(*(np.asarray([at], dtype=np.int64) for at in (self.src.ctypes.data, ask["to"]["tail"], 8)))
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            done = self.fabric.write(peer, word, deadline)
            trips.append(time.perf_counter() - begun)
            if not done.ok:
                return {"fault": done.cause}
        begun = time.perf_counter()
        done = self.fabric.write(peer, blocks, deadline)
        seconds = time.perf_counter() - begun
        if not done.ok:
            return {"fault": done.cause}
        bulk, rate, fault = self._bulk(peer, ask["to"]["tail"] + TAIL, deadline)
        after = counters()
        return {
            "fault": fault,
            "seconds": seconds,
            "bulk": bulk,
            "rate": rate,
            # the first connects
            "latency": sorted(trips[1:])[len(trips) // 2],
            "transport": self.fabric.observed_transport(),
            "counted": {name: after[name] - before.get(name, 0) for name in after},
        }

    def _bulk(self, peer: Any, target: int, deadline: Deadline) -> tuple[int, float, str | None]:
        """Bytes written in large blocks, the best rate of a few tries, and what went wrong."""
        size, best = BULK_BLOCK, 0.0
        for _ in range(4):
            steps = np.arange(0, size, BULK_BLOCK, dtype=np.int64)
            blocks = Blocks(steps + self.src.ctypes.data, steps + target, np.full_like(steps, BULK_BLOCK))
            begun = time.perf_counter()
            done = self.fabric.write(peer, blocks, deadline)
            seconds = time.perf_counter() - begun
            if not done.ok:
                return size, best, done.cause
            best = max(best, size / seconds)
            if size < BULK and seconds > FAST:
                break
            size = BULK
        return size, best, None

    def verify(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Count the bytes that are not what the sender's buffer holds, and those that changed outside the blocks."""
        source = pattern(ask["seed"], max(ask["src_bytes"], BULK))
        wanted = np.full(self.dst.size, POISON, dtype=np.uint8)
        for src, dst, length in zip(ask["src"], ask["dst"], ask["length"], strict=True):
            wanted[dst : dst + length] = source[src : src + length]
        tail = slice(ask["dst_bytes"], ask["dst_bytes"] + TAIL)
        wanted[tail.stop : tail.stop + ask["bulk"]] = source[: ask["bulk"]]
        wrong = self.dst != wanted
        # written many times, for its latency only
        wrong[tail] = False
        count = int(np.count_nonzero(wrong))
        return {"wrong": count, "first": int(np.argmax(wrong)) if count else None}

    def _fill(self, seed: int) -> None:
        if seed != self.seed:
            self.src[:] = pattern(seed, self.src.nbytes)
            self.seed = seed

    def _peer(self, address: str) -> Any:
        if address not in self.peers:
            self.peers[address] = self.fabric.connect(base64.b64decode(address))
        return self.peers[address]


def pattern(seed: int, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The same bytes on every host: those of PCG64 from `seed`."""
    return np.frombuffer(np.random.Generator(np.random.PCG64(seed)).bytes(size), dtype=np.uint8)


def counters() -> dict[str, int]:
    """Packets or bytes that each verbs device has sent, from the kernel; empty without devices."""
    found = {}
    for device in sorted(Path("/sys/class/infiniband").glob("*")):
        for name in ("hw_counters/sent_pkts", "counters/port_xmit_packets", "counters/port_xmit_data"):
            for path in device.glob(f"ports/*/{name}"):
                try:
                    found[f"{device.name} {path.name}"] = int(path.read_text())
                except (OSError, ValueError):
                    continue
    return found


def _fabric(ask: dict[str, Any]) -> Any:
    if ask["backend"] == "nixl":
        from pdctl_transfer.fabric.nixl import NixlFabric

        return NixlFabric(ask["protocol"])
    from pdctl_transfer.fabric.mooncake import MooncakeFabric

    # what it says of its start is evidence, whatever the operator's shell asks for
    os.environ["MC_LOG_LEVEL"] = "INFO"
    return MooncakeFabric(ask["host"], ask["protocol"], ",".join(ask["devices"]))


def _reach(host: str, port: int) -> str | None:
    """Whether the other end's kernel answers: a fabric needs a minute to find out that it does not."""
    try:
        socket.create_connection((host, port), timeout=REACH_TIMEOUT).close()
    except TimeoutError:
        return f"{host} does not answer within {REACH_TIMEOUT:g} s"
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return None


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def serve(commands: IO[bytes], answers: IO[bytes]) -> None:
    """Answer commands until there are no more."""
    agent = Agent()
    for line in commands:
        ask = json.loads(line)
        try:
            answer = getattr(agent, ask["do"])(ask)
        except (TransferError, OSError, MemoryError) as error:
            answer = {"fault": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def main() -> None:
    """Keep standard output for answers, whatever libraries print."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
    # NIXL crashes in an orderly exit where its RDMA plug-in was loaded
    os._exit(0)


if __name__ == "__main__":
    main()

"""One direction of one pair: what crossed, what carried it, how fast."""

import re
from collections.abc import Mapping

from msgspec import Struct

from pdctl.preflight.probe.agents import Agent, AgentError
from pdctl.preflight.probe.blocks import Load
from pdctl.preflight.snapshot import label
from pdctl.preflight.wants import Want

FOUND_HCAS = re.compile(r"Found (\d+) HCAs")
FELL_BACK = "TcpTransport: listen on port"
TIMEOUT = 30.0
"""Seconds for one direction: Mooncake itself gives up after 30 to 61."""


class Measure(Struct, frozen=True):
    """What a direction showed. `fault` is set where no block crossed; the rest is then as unknown as it looks."""

    source: str
    target: str
    asked: str
    fault: str | None = None
    load: str = ""
    bytes: int = 0
    blocks: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    """Bytes a second in blocks of 1 MiB: what the link gives, whatever the layout's blocks cost."""
    latency: float = 0.0
    transport: str = "unknown"
    counted: Mapping[str, int] = {}
    """Packets or words by device, as the sender's kernel counted them meanwhile."""
    log: tuple[str, ...] = ()
    """Lines of the sender's fabric that tell the transport."""
    wrong: int = 0

    @property
    def seen(self) -> str:
        """The transport, believed only where the kernel's counters agree."""
        moved = [value for name, value in self.counted.items() if value > 0]
        if self.transport == "rdma" and self.counted and not moved:
            return "rdma by its own word, but no device sent a packet"
        return self.transport


def measure(source: Agent, target: Agent, load: Load, seed: int, timeout: float = TIMEOUT) -> Measure:
    """Send the load once and check every byte of it at the other end. Never raises for what the fabric does."""
    names = (*_names(source.want, target.want), source.want.protocol)
    columns = {"src": load.src, "dst": load.dst, "length": load.length}
    sizes = {"src_bytes": load.src_bytes, "dst_bytes": load.dst_bytes}
    try:
        target.ask(timeout, do="prepare")
        sent = source.ask(timeout, do="send", to=target.opened, seed=seed, deadline=timeout, **columns)
        checked = target.ask(timeout, do="verify", seed=seed, bulk=sent["bulk"], **columns, **sizes)
    except AgentError as error:
        return Measure(*names, fault=str(error), log=telling(source.log()))
    return Measure(
        *names,
        load=load.words,
        bytes=load.total,
        blocks=len(load.length),
        seconds=sent["seconds"],
        rate=sent["rate"],
        latency=sent["latency"],
        transport=sent["transport"],
        counted=sent["counted"],
        log=telling(source.log()),
        wrong=checked["wrong"],
    )


def _names(source: Want, target: Want) -> tuple[str, str]:
    """Hosts; pools where both are on one."""
    if source.host == target.host:
        return source.pool, target.pool
    return label(source.host), label(target.host)


def telling(log: str) -> tuple[str, ...]:
    """The lines of a fabric's log that say which transport it took, without their time stamps."""
    lines = (line for line in log.splitlines() if FOUND_HCAS.search(line) or FELL_BACK in line)
    return tuple(dict.fromkeys(line.split("] ", 1)[-1] for line in lines))

"""Nodes of an engine that spans several: their hosts, ports and accelerators, and what the local launcher can start."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pdctl.engines.base import Node
from pdctl.engines.spans import span_of
from pdctl.errors import FleetFileError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool

LOCAL: Final = ("localhost", "127.0.0.1", "::1")
FIRST_NODE: Final = ("bootstrap", "dist_init")
"""Ports that the first node opens for all."""


def address_of(host: str) -> str:
    """Where peers reach a host that the fleet file names: this one at its loopback address."""
    return "127.0.0.1" if host in LOCAL else host.rpartition("@")[2]


def purpose_of(purpose: str, number: int) -> str:
    """What a further node's port is recorded as: `http.1`."""
    return purpose if number == 0 else f"{purpose}.{number}"


def devices_of(pool: Pool, places: Sequence[tuple[str, int]], number: int) -> tuple[str, ...]:
    """A node's part of the accelerators: equal parts, in order, for nodes of one engine on one host."""
    here = [place for place, (host, _) in enumerate(places) if host == places[number][0]]
    part = len(pool.devices) // len(here)
    begin = here.index(number) * part
    return tuple(pool.devices[begin : begin + part])


def all_ports(nodes: Sequence[Node]) -> dict[str, int]:
    """The ports of an engine by purpose, each node's own."""
    return {
        purpose_of(purpose, number): port
        for number, node in enumerate(nodes)
        for purpose, port in node.ports.items()
        if number == 0 or purpose not in FIRST_NODE
    }


def words_of(
    argvs: Sequence[Sequence[str]], envs: Sequence[Mapping[str, str]]
) -> tuple[list[list[str]], dict[str, str]]:
    """The commands of the nodes, each after the variables that only it has (`NAME=value`), and those of all."""
    shared = {name: value for name, value in envs[0].items() if all(env.get(name) == value for env in envs)}
    own = ([f"{name}={value}" for name, value in env.items() if name not in shared] for env in envs)
    return [[*before, *argv] for before, argv in zip(own, argvs, strict=True)], shared


def unstartable(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """PD3116 hosts that the local launcher does not reach; PD3117 nodes that only flags speak of."""
    for pool in loaded.pools():
        others = [host for host in dict.fromkeys(pool.hosts) if host not in LOCAL]
        if others:
            message = f"{pool.key}.hosts: the local launcher does not reach {', '.join(others[:4])}"
            hint = "`pdctl up --plan` prints what to start there; leave `hosts` out, or localhost, to start it here"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.hosts"), code="PD3116", hint=hint)
        span = span_of(loaded, pool)
        if span.part is not None or span.nodes not in (None, pool.nodes):
            said = span.part or f"--nnodes {span.nodes}"
            message = f"{pool.key}: {said} speaks of nodes that the pool does not name"
            hint = "write `nodes`, and `hosts` where they are not this one; then each node gets its own flags"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.args"), code="PD3117", hint=hint)

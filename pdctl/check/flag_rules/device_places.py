"""PD2020: the places that name devices for one pool say the same. It needs nothing of the hosts.

Engines follow one and say little of the other: SGLang ignores its flag where UCX_NET_DEVICES is set, a map by GPU
included, and refuses to start where the flag and NIXL's own parameters differ; a variable of a pool replaces the one
that pdctl sets; Mooncake takes only what both its filter and the engine name.
"""

from collections.abc import Iterator, Sequence

from pdctl.engines.named import PARAMS, Named, spoken
from pdctl.flags import load, read_words
from pdctl.fleet import LoadedFleet
from pdctl_transfer.rules import Evidence, Finding


def check_device_places(loaded: LoadedFleet) -> Iterator[Finding]:
    """Of every pool what the file alone tells; variables that a process inherits are preflight's."""
    if loaded.fleet.transfer.protocol == "rdma":
        for pool in (*loaded.pools("prefill"), *loaded.pools("decode")):
            reading = read_words(load(pool.engine or loaded.fleet.engine), pool.args)
            yield from apart(pool.name, spoken(loaded, pool, reading, pool.env))


def apart(subject: str, named: Sequence[Named]) -> Iterator[Finding]:
    """One finding a place that says something else than the first, which is the one that the engine follows."""
    for other in named[1:]:
        found = _narrowed(named[0], other) if other.narrows else _ignored(named[0], other)
        if found is not None:
            outcome, error = found
            evidence = (Evidence(named[0].source, named[0].text), Evidence(other.source, other.text))
            params = {"first": named[0].what, "other": other.what, "outcome": outcome}
            yield Finding("PD2020", subject, evidence, params, "error" if error else None)


def _ignored(first: Named, other: Named) -> tuple[str, bool] | None:
    """What comes of it, and whether that is an error."""
    if _compared(first) == _compared(other) and first.negated == other.negated and first.by_gpu == other.by_gpu:
        return None
    if first.source.endswith(PARAMS) and other.reader == "suffixed":
        # a file on another host was not read
        return None if other.fault else ("SGLang refuses to start", True)
    return f"the engine follows {first.what}", False


def _narrowed(first: Named, other: Named) -> tuple[str, bool] | None:
    """Mooncake's filter on top of what the engine hands it."""
    left = sorted(set(first.names) & set(other.names))
    if set(left) == set(first.names):
        return None
    if left:
        return f"Mooncake takes {', '.join(left)} alone", False
    return "no device is left, and Mooncake moves the data over TCP", True


def _compared(place: Named) -> frozenset[str]:
    """Its names without the port that UCX wants and others do not."""
    return frozenset(name.strip().removesuffix(":1") for name in place.names)

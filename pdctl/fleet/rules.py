"""What a fleet file can get wrong although each value alone is legal. Judged before anything starts."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from pdctl.errors import FleetFileError
from pdctl.fleet.external import judge_external
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool
from pdctl.fleet.texts import judge_texts, misplaced

_RESERVED = ("router",)
HIGHEST = 65535
"""The last port that there is."""
ON_EVERY_NODE: Final[Mapping[str, tuple[str, ...]]] = {"sglang": ("http",)}
"""Ports that not only an engine's first node opens: SGLang's others answer /health there (engine.py:1281 of 0.5.23)."""


def judge(loaded: LoadedFleet) -> None:
    """Raise the first fault (FleetFileError), the rest in its `others`."""
    faults = list(misplaced(loaded)) or list(judge_external(loaded)) or _others(loaded)
    if faults:
        first, *others = sorted(faults, key=lambda fault: int((fault.where or "").rpartition(":")[2] or 0))
        first.others = tuple(others)
        raise first


def _others(loaded: LoadedFleet) -> list[FleetFileError]:
    return [*_names(loaded), *_nodes(loaded), *_ports(loaded), *_args(loaded), *judge_texts(loaded)]


def _names(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """Pools are told apart by name, and their members must not collide with each other or the router."""
    pools = loaded.pools()
    counts = Counter(pool.name for pool in pools)
    for pool in pools:
        if counts[pool.name] > 1 or pool.name in _RESERVED:
            message = f"{pool.key}: the name {pool.name!r} is taken"
            hint = "give each pool a `name` of its own"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.name"), code="PD0008", hint=hint)


def _nodes(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """PD0036 hosts that cannot be dealt out to engines of several nodes; PD0037 one meeting place for each engine."""
    for pool in loaded.pools():
        if pool.hosts and len(pool.hosts) % pool.nodes:
            message = f"{pool.key}.hosts: {len(pool.hosts)} hosts cannot be taken {pool.nodes} at a time"
            hint = f"an engine takes {pool.nodes} of them, so give {pool.replicas * pool.nodes}"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.hosts"), code="PD0036", hint=hint)
        given = pool.dist_init_address
        if given and len(given) != pool.replicas:
            key = f"{pool.key}.dist_init_address"
            message = f"{key}: found {len(given)} for {pool.replicas} engines, each of which meets at one of its own"
            hint = "one list item a replica, or leave it out: the first host of each"
            yield FleetFileError(message, where=loaded.where(key), code="PD0037", hint=hint)


def _ports(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """A port is given once a host; what is on one host counts up from the port given."""
    taken: dict[tuple[str, int], str] = {}
    router = loaded.fleet.router
    if router.port:
        taken["localhost", router.port] = "router.port"
    for pool in loaded.pools():
        for purpose, port in pool.ports.items():
            key = f"{pool.key}.ports.{purpose}"
            steps = (step for places in _listening(loaded, pool, purpose) for _, step in places)
            last = pool.port(purpose, max(steps, default=0))
            if last > HIGHEST:
                message = f"{key}: found {port}, but replicas count up from it, and the last would have {last}"
                hint = f"give {port - (last - HIGHEST)} at most"
                yield FleetFileError(message, where=loaded.where(key), code="PD0004", hint=hint)
            elif pool.shares_ports:
                yield from _clashes(loaded, pool, purpose, taken)


def _clashes(
    loaded: LoadedFleet, pool: Pool, purpose: str, taken: dict[tuple[str, int], str]
) -> Iterator[FleetFileError]:
    """PD0009: the first port for this purpose that another purpose or pool has on the same host."""
    key = f"{pool.key}.ports.{purpose}"
    for places in _listening(loaded, pool, purpose):
        for host, step in places:
            port = pool.port(purpose, step)
            other = taken.setdefault((host, port), key)
            if other != key:
                message = f"{key}: port {port} on {host} is already {other}'s"
                hint = f"given at {loaded.where(other)}; replicas on one host count up from the port given"
                yield FleetFileError(message, where=loaded.where(key), code="PD0009", hint=hint)
                return


def _listening(loaded: LoadedFleet, pool: Pool, purpose: str) -> Iterator[list[tuple[str, int]]]:
    """Of each replica the nodes that listen on a port for this purpose."""
    every = purpose in ON_EVERY_NODE.get(pool.engine or loaded.fleet.engine, ())
    for index in range(pool.replicas):
        places = pool.places(index)
        yield places if every else places[:1]


def _args(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """One list item a word: `--flag value` as one item reaches the engine as one unknown flag."""
    sections = [("router", loaded.fleet.router.args), *((pool.key, pool.args) for pool in loaded.pools())]
    for section, args in sections:
        for index, word in enumerate(args):
            flag, _, value = word.partition(" ")
            if word.startswith("--") and value.strip() and "=" not in flag:
                key = f"{section}.args.{index}"
                hint = f'write two items: "{flag}", "{value.strip()}"'
                message = f'{key}: found "{word}", expected one word'
                yield FleetFileError(message, where=loaded.where(key), code="PD0004", hint=hint)

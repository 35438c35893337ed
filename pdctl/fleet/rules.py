"""What a fleet file can get wrong although each value alone is legal. Judged before anything starts."""

from collections import Counter
from collections.abc import Iterator

from pdctl.errors import FleetFileError
from pdctl.fleet.external import judge_external
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.texts import judge_texts, misplaced

_RESERVED = ("router",)
HIGHEST = 65535
"""The last port that there is."""


def judge(loaded: LoadedFleet) -> None:
    """Raise the first fault (FleetFileError), the rest in its `others`."""
    faults = list(misplaced(loaded)) or list(judge_external(loaded)) or _others(loaded)
    if faults:
        first, *others = sorted(faults, key=lambda fault: int((fault.where or "").rpartition(":")[2] or 0))
        first.others = tuple(others)
        raise first


def _others(loaded: LoadedFleet) -> list[FleetFileError]:
    return [*_names(loaded), *_ports(loaded), *_args(loaded), *judge_texts(loaded)]


def _names(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """Pools are told apart by name, and their members must not collide with each other or the router."""
    pools = loaded.pools()
    counts = Counter(pool.name for pool in pools)
    for pool in pools:
        if counts[pool.name] > 1 or pool.name in _RESERVED:
            message = f"{pool.key}: the name {pool.name!r} is taken"
            hint = "give each pool a `name` of its own"
            yield FleetFileError(message, where=loaded.where(f"{pool.key}.name"), code="PD0008", hint=hint)


def _ports(loaded: LoadedFleet) -> Iterator[FleetFileError]:
    """A port is given once a host; replicas on one host count up from the port given."""
    taken: dict[tuple[str, int], str] = {}
    router = loaded.fleet.router
    if router.port:
        taken["localhost", router.port] = "router.port"
    for pool in loaded.pools():
        for purpose, port in pool.ports.items():
            key = f"{pool.key}.ports.{purpose}"
            last = port + max((pool.place(index)[1] for index in range(pool.replicas)), default=0)
            if last > HIGHEST:
                message = f"{key}: found {port}, but replicas count up from it, and the last would have {last}"
                hint = f"give {port - (last - HIGHEST)} at most"
                yield FleetFileError(message, where=loaded.where(key), code="PD0004", hint=hint)
                continue
            for index in range(pool.replicas):
                host, step = pool.place(index)
                other = taken.setdefault((host, port + step), key)
                if other != key:
                    message = f"{key}: port {port + step} on {host} is already {other}'s"
                    hint = f"given at {loaded.where(other)}; replicas on one host count up from the port given"
                    yield FleetFileError(message, where=loaded.where(key), code="PD0009", hint=hint)
                    break


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

"""What the router's rules look at: its contract, the engines that its args list, and those of the fleet."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from pdctl.check.groups import Group
from pdctl.engines.names import FLAG, served_names
from pdctl.fleet.urls import parse_url
from pdctl.routers import ROUTERS, Contract, contract_of
from pdctl.routers.listed import Listed, listed
from pdctl_transfer.rules import Evidence

if TYPE_CHECKING:
    from pdctl.fleet import LoadedFleet, Pool

#: Names of one machine by itself. Each host of a fleet says them of itself, so they say nothing of another.
HERE = frozenset({"localhost", "127.0.0.1", "::1"})


class Placed(Struct, frozen=True):
    """One engine where the file places it; ports that it does not give are None."""

    name: str
    pool: str
    role: str
    host: str
    http: int | None
    bootstrap: int | None
    where: str
    """The line of its ports."""

    def is_at(self, one: Listed) -> bool:
        """Whether a router's list means this engine."""
        return self.http == one.port and self.is_on(one)

    def is_on(self, one: Listed) -> bool:
        """Whether a router's list names this engine's host."""
        return self.host == one.host or {self.host, one.host} <= HERE


class Named(Struct, frozen=True):
    """The names that a pool's engines answer to, and what says so."""

    pool: str
    names: tuple[str, ...]
    evidence: Evidence


class Routed(Struct, frozen=True):
    """A fleet behind its router. `contract` is None for a router that pdctl does not know."""

    kind: str
    evidence: Evidence
    contract: Contract | None
    args: tuple[str, ...]
    places: tuple[str, ...]
    """`file:line` of each word of `args`."""
    groups: tuple[Group, ...]
    engines: tuple[Placed, ...]
    named: tuple[Named, ...]
    asked: Named | None
    """The name that clients ask for, where the file writes one."""
    started: bool
    """Whether `up` starts it, and tells it of the engines itself."""
    port_variable: Evidence | None = None
    """The variable with the bootstrap port of all, where the router reads one and the file sets it."""

    @property
    def workers(self) -> tuple[Listed, ...]:
        """The engines that its args list."""
        return listed(self.contract, self.args) if self.contract else ()

    def at(self, one: Listed) -> Evidence:
        """A listed engine as evidence."""
        return Evidence(self.places[one.index], f"--{one.role} {one.text}")


def routed(loaded: "LoadedFleet", groups: Sequence[Group]) -> Routed | None:
    """The fleet of a file; None for one that somebody else started without a router. `groups`: pools as judged."""
    fleet, router = loaded.fleet, loaded.fleet.router
    if fleet.external and not router.model_fields_set:
        return None
    pools = (*loaded.pools("prefill"), *loaded.pools("decode"))
    contract = contract_of(router.kind)
    written = "model.name" in loaded
    asked = Named(
        "model.name", (fleet.model.served_name,), Evidence(loaded.where("model.name"), "what clients ask for")
    )
    variable = contract.port_variable if contract else None
    port = router.env.get(variable) if variable else None
    return Routed(
        kind=router.kind,
        evidence=Evidence(loaded.source("router.kind"), f"router.kind: {router.kind}"),
        contract=contract,
        args=tuple(router.args),
        places=tuple(loaded.where(f"router.args.{index}") for index in range(len(router.args))),
        groups=tuple(groups),
        engines=tuple(one for pool in pools for one in _placed(loaded, pool)),
        named=tuple(_named(loaded, pool) for pool in pools if pool.replicas),
        asked=asked if written else None,
        started=router.kind in ROUTERS and not fleet.external,
        port_variable=Evidence(loaded.where(f"router.env.{variable}"), port) if port else None,
    )


def _placed(loaded: "LoadedFleet", pool: "Pool") -> Iterator[Placed]:
    where = loaded.where(f"{pool.key}.ports")
    for index, address in enumerate(pool.urls):
        at, line = parse_url(address.url), loaded.where(f"{pool.key}.urls.{index}")
        said = str(address.bootstrap or pool.ports.get("bootstrap", "")).rpartition(":")[2]
        port = int(said) if said.isdecimal() else None
        yield Placed(pool.members[index], pool.name, pool.role, at.host, at.port, port, line)
    for index, name in enumerate(pool.members if not pool.urls else ()):
        host, step = pool.place(index)
        http, bootstrap = (pool.ports.get(purpose) for purpose in ("http", "bootstrap"))
        own = http + step if http else None
        shared = bootstrap + step if bootstrap else None
        yield Placed(name, pool.name, pool.role, host, own, shared, where)


def _named(loaded: "LoadedFleet", pool: "Pool") -> Named:
    names = served_names(loaded.fleet, pool)
    key = f"{pool.key}.served_name"
    if key in loaded:
        return Named(pool.name, names, Evidence(loaded.where(key), f"served_name: {names[0]}"))
    if names != (loaded.fleet.model.served_name,):
        return Named(pool.name, names, Evidence(loaded.where(f"{pool.key}.args"), f"{FLAG} {' '.join(names)}"))
    source = loaded.source("model.name" if "model.name" in loaded else "model.path")
    return Named(pool.name, names, Evidence(source, f"{pool.name}: {names[0]}"))

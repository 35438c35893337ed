"""From a fleet file to the units that run it: every port and command line settled, nothing started."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pdctl.engines import adapter
from pdctl.engines.base import Engine, Instance
from pdctl.engines.refusals import (
    launcher_faults,
    pool_faults,
    raise_all,
    router_faults,
    set_by_pdctl,
    startable,
    two_truths,
)
from pdctl.errors import InputError
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool, Router
from pdctl.launch.base import Unit
from pdctl.launch.state import ROUTER, UnitEntry
from pdctl.routers import READY_PATH, Backend, RouterKind, router_argv
from pdctl.up.keys import Keys
from pdctl.up.ports import PortBook, is_free

LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class EngineUnit:
    """One engine: what it is, who speaks for it, and how it is started."""

    instance: Instance
    engine: Engine
    unit: Unit
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FleetPlan:
    """All units of a fleet, in the order in which they start."""

    engines: tuple[EngineUnit, ...]
    router: Unit
    router_kind: RouterKind
    router_model: Router
    router_key: str | None = field(default=None, repr=False)
    """What clients send."""
    control_key: str | None = field(default=None, repr=False)
    """What the router's list of workers is changed with, where it asks for a key."""

    @property
    def router_host(self) -> str:
        """The address that the router listens on."""
        return self.router_model.host

    @property
    def units(self) -> tuple[Unit, ...]:
        """Engines, then the router."""
        return (*(engine.unit for engine in self.engines), self.router)

    @property
    def url(self) -> str:
        """Where clients reach the fleet."""
        host = "127.0.0.1" if self.router_host in ("0.0.0.0", "::") else self.router_host
        return f"http://{host}:{self.router.ports['http']}"

    def of(self, role: str) -> tuple[EngineUnit, ...]:
        """The engines of a role."""
        return tuple(engine for engine in self.engines if engine.instance.role == role)

    def entries(self) -> tuple[UnitEntry, ...]:
        """The units as the fleet's state remembers them."""
        engines = (
            UnitEntry(
                one.unit.name,
                one.unit.role,
                one.instance.host,
                dict(one.unit.ports),
                one.engine.readiness.path,
                one.instance.pool.api_key_env,
                _asked_for(one),
                one.engine.name,
            )
            for one in self.engines
        )
        host = self.url.removeprefix("http://").rpartition(":")[0]
        key_env = self.router_model.api_key_env
        asked = "api_key" if self.router_key and self.router_kind.asks else "control_key"
        keys = {"http": asked} if asked == "api_key" or self.router_kind.control else {}
        ports, kind = dict(self.router.ports), self.router_kind.name
        return (*engines, UnitEntry(ROUTER, ROUTER, host, ports, READY_PATH, key_env, keys, kind))


def _asked_for(one: EngineUnit) -> dict[str, str]:
    """What an engine's ports ask for, by purpose."""
    signed = one.engine.signed if one.engine.secret_variable in one.unit.env else ()
    keys = {purpose: "secret" for purpose in signed if purpose in one.unit.ports}
    return {**keys, "http": "api_key"} if one.instance.key else keys


@dataclass
class _Planner:
    loaded: LoadedFleet
    recorded: Mapping[str, Mapping[str, int]]
    running: frozenset[str]
    secret: Callable[[], str] | None
    keys: Keys
    book: PortBook = field(default_factory=PortBook)

    def ports(self, name: str, purposes: tuple[str, ...], given: Mapping[str, int], host: str) -> dict[str, int]:
        """Given ports as they are; of the others, those of the last run where the unit has them or can have them.

        What an earlier file gave from beyond the range that pdctl chooses from does not stay.
        """
        last = {
            purpose: port
            for purpose, port in self.recorded.get(name, {}).items()
            if name in self.running or (self.book.offers(port) and is_free(host, port))
        }
        chosen = {purpose: port for purpose in purposes if (port := given.get(purpose) or last.get(purpose))}
        for port in chosen.values():
            self.book.take(port)
        return {purpose: chosen.get(purpose) or self.book.free(host) for purpose in purposes}

    def engine(self, pool: Pool, index: int, engine: Engine) -> EngineUnit:
        name, host = pool.members[index], self.host(pool, index)
        step = pool.place(index)[1]
        purposes = tuple(engine.purposes(pool))
        given = {purpose: port + step for purpose, port in pool.ports.items()}
        ports = self.ports(name, purposes, given, host)
        key = self.keys.pools.get(pool.key)
        instance = Instance(name, pool, self.loaded.fleet, self.loaded.model_path, host, ports, key)
        command = engine.command(instance)
        env = {**self.shared(pool, engine), **command.env, **({engine.key_variable: key} if key else {})}
        unit = Unit(name, pool.role, command.argv, env, ports=ports)
        return EngineUnit(instance, engine, unit, command.notes)

    def shared(self, pool: Pool, engine: Engine) -> dict[str, str]:
        """The fleet's secret, for an engine that moves state and signs what it says. The pool's own `env` wins."""
        variable = engine.secret_variable
        if variable is None or self.secret is None or pool.role not in ("prefill", "decode"):
            return {}
        return {variable: self.secret()}

    def host(self, pool: Pool, index: int) -> str:
        host, _ = pool.place(index)
        if host not in LOCAL:
            message = f"the local launcher does not reach {host}"
            raise InputError(message, where=f"{pool.key}.hosts", code="PD0016", hint="leave `hosts` out, or localhost")
        return "127.0.0.1"

    def router(self, engines: tuple[EngineUnit, ...]) -> tuple[Unit, RouterKind]:
        router = self.loaded.fleet.router
        kind = startable(self.loaded)
        given = {"http": router.port} if router.port else {}
        ports = self.ports(ROUTER, ("http", "metrics"), given, router.host)
        sides = {
            role: [
                Backend(one.instance.url, one.instance.ports.get("bootstrap"))
                for one in engines
                if one.instance.role == role
            ]
            for role in ("prefill", "decode")
        }
        listen, backend = (router.host, ports["http"]), self.loaded.fleet.transfer.backend
        argv = router_argv(kind, sides["prefill"], sides["decode"], listen, ports["metrics"], router.args, backend)
        env = {**router.env, **kind.env(self.keys.router, self.keys.control)}
        return Unit(ROUTER, ROUTER, argv, env, ports=ports, grace_s=5), kind


def make_plan(
    loaded: LoadedFleet,
    recorded: Mapping[str, Mapping[str, int]] | None = None,
    running: frozenset[str] = frozenset(),
    secret: Callable[[], str] | None = None,
    keys: Keys | None = None,
) -> FleetPlan:
    """Settle ports and command lines. `recorded`: ports of the last run, by unit and purpose; `running`: who has them.

    `secret` gives what the fleet's engines share, and is called only where one of them takes it.
    Raises InputError at the fleet file's line for what the engine, the router or the launcher cannot do.
    """
    keys = keys or Keys()
    planner = _Planner(loaded, recorded or {}, running, secret, keys)
    router_port = loaded.fleet.router.port
    given = [port + i for pool in loaded.pools() for port in pool.ports.values() for i in range(pool.replicas)]
    for port in (*given, *([router_port] if router_port else [])):
        planner.book.take(port)
    startable(loaded)
    pools = [(pool, adapter(pool.engine or loaded.fleet.engine)) for pool in loaded.pools()]
    faults = [fault for pool, engine in pools for fault in pool_faults(loaded, pool, engine)]
    faults += [one.error for pool in loaded.pools() for one in two_truths(loaded, pool)]
    raise_all([*launcher_faults(loaded), *faults, *set_by_pdctl(loaded), *router_faults(loaded)])
    with located(loaded):
        engines = tuple(planner.engine(pool, index, engine) for pool, engine in pools for index in range(pool.replicas))
        router, kind = planner.router(engines)
    return FleetPlan(engines, router, kind, loaded.fleet.router, keys.router, keys.control)


@contextmanager
def located(loaded: LoadedFleet) -> Iterator[None]:
    """Adapters know keys, not lines: put the fleet file's line to an InputError whose `where` is a dotted key."""
    try:
        yield
    except InputError as error:
        key = error.where or ""
        if key.partition(".")[0] in {"name", "model", "engine", "transfer", "prefill", "decode", "roles", "router"}:
            message, where = f"{key}: {error.message}", loaded.where(key)
            raise InputError(message, where=where, code=error.code, hint=error.hint) from error
        raise

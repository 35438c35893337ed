"""From a fleet file to the units that run it: every port and command line settled, nothing started."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pdctl.check.by_core import starts_with_core
from pdctl.derive.flag_tables import connector_of
from pdctl.engines import adapter
from pdctl.engines.base import Engine, Instance, Node
from pdctl.engines.core import CONNECTOR, has_core
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
from pdctl.launch.together import together
from pdctl.routers import READY_PATH, Backend, RouterKind, contract_of, needed, router_argv
from pdctl.up.keys import Keys
from pdctl.up.nodes import FIRST_NODE, LOCAL, address_of, all_ports, devices_of, purpose_of, words_of
from pdctl.up.ports import PortBook, is_free


@dataclass(frozen=True)
class NodeCommand:
    """How one node of an engine that spans several is started, and where."""

    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True)
class EngineUnit:
    """One engine: what it is, who speaks for it, and how it is started."""

    instance: Instance
    engine: Engine
    unit: Unit
    notes: tuple[str, ...] = ()
    nodes: tuple[NodeCommand, ...] = ()
    """Each node's own command, where it spans several: the unit is all of them together."""

    @property
    def serving(self) -> tuple[Instance, ...]:
        """The nodes that take requests, as instances."""
        return tuple(one for one in self.instance.each_node if self.engine.serves(one))


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
                one.instance.pool.core,
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
    by_core: bool = False
    """Whether the transfer core carries between engines that must know it at their start."""
    book: PortBook = field(default_factory=PortBook)

    def ports(
        self, pool: Pool | None, name: str, purposes: tuple[str, ...], given: Mapping[str, int], host: str | None
    ) -> dict[str, int]:
        """Given ports as they are; of the others, those of the last run where the unit has them or can have them.

        What an earlier file gave from beyond the range that pdctl chooses from does not stay. `host`: where it
        listens; None for another host than this one.
        """
        last = {
            purpose: port
            for purpose, port in self.recorded.get(name, {}).items()
            if name in self.running or (self.book.offers(port) and (host is None or is_free(host, port)))
        }
        chosen = {purpose: port for purpose in purposes if (port := given.get(purpose) or last.get(purpose))}
        for purpose, port in chosen.items():
            self.book.take(port, pool.taken(purpose) if pool else 1)
        return {
            purpose: chosen.get(purpose) or self.book.free(host, pool.taken(purpose) if pool else 1)
            for purpose in purposes
        }

    def engine(self, pool: Pool, index: int, engine: Engine) -> EngineUnit:
        nodes = self.nodes(pool, index, tuple(engine.purposes(pool)))
        first, key = nodes[0], self.keys.pools.get(pool.key)
        instance = Instance(
            pool.members[index],
            pool,
            self.loaded.fleet,
            self.loaded.model_path,
            first.host,
            first.ports,
            key,
            nodes if len(nodes) > 1 else (),
            meeting=pool.dist_init_address[index] if pool.dist_init_address else first.host,
            by_core=self.by_core,
        )
        commands = [engine.command(one) for one in instance.each_node]
        own = {engine.key_variable: key} if key else {}
        envs = [{**self.shared(pool, engine), **command.env, **own} for command in commands]
        argvs = [command.argv for command in commands]
        unit = Unit(instance.name, pool.role, argvs[0], envs[0], ports=first.ports)
        if not instance.nodes:
            return EngineUnit(instance, engine, unit, commands[0].notes)
        words, env = words_of(argvs, envs)
        unit = replace(unit, argv=together(words), env=env, ports=all_ports(nodes))
        each = tuple(NodeCommand(node.host, argvs[place], envs[place]) for place, node in enumerate(nodes))
        return EngineUnit(instance, engine, unit, commands[0].notes, each)

    def nodes(self, pool: Pool, index: int, purposes: tuple[str, ...]) -> tuple[Node, ...]:
        """The nodes of one replica. What the first opens for all is every node's port too."""
        places, found = pool.places(index), list[Node]()
        for number, (host, step) in enumerate(places):
            opened = [one for one in purposes if number == 0 or one not in FIRST_NODE]
            given = {purpose_of(one, number): port for one, port in pool.given_ports(step).items() if one in opened}
            known_as = tuple(purpose_of(one, number) for one in opened)
            here = address_of(host) if host in LOCAL else None
            chosen = self.ports(pool, pool.members[index], known_as, given, here)
            of_first = {one: port for one, port in found[0].ports.items() if one in FIRST_NODE} if found else {}
            ports = of_first | dict(zip(opened, chosen.values(), strict=True))
            found.append(Node(address_of(host), ports, devices_of(pool, places, number)))
        return tuple(found)

    def shared(self, pool: Pool, engine: Engine) -> dict[str, str]:
        """The fleet's secret, for an engine that moves state and signs what it says. The pool's own `env` wins."""
        variable = engine.secret_variable
        if variable is None or self.secret is None or not has_core(engine.name, pool):
            return {}
        return {variable: self.secret()}

    def router(self, engines: tuple[EngineUnit, ...]) -> tuple[Unit, RouterKind]:
        router = self.loaded.fleet.router
        kind = startable(self.loaded)
        given = {"http": router.port} if router.port else {}
        ports = self.ports(None, ROUTER, ("http", "metrics"), given, router.host)
        sides = {
            role: [
                Backend(node.url, node.ports.get("bootstrap"))
                for one in engines
                if one.instance.role == role
                for node in one.serving
            ]
            for role in ("prefill", "decode")
        }
        listen, word = (router.host, ports["http"]), self._speech(router.kind)
        argv = router_argv(kind, sides["prefill"], sides["decode"], listen, ports["metrics"], router.args, word)
        env = {**router.env, **kind.env(self.keys.router, self.keys.control)}
        return Unit(ROUTER, ROUTER, argv, env, ports=ports, grace_s=5), kind

    def _speech(self, kind: str) -> str:
        """How the router is told to speak: as the engines' connector expects, or by the transfer's own name."""
        fleet = self.loaded.fleet
        own = fleet.transfer.options.get("kv_connector") or connector_of(fleet.engine, fleet.transfer.backend)
        named = CONNECTOR if self.by_core and fleet.engine == "vllm" else own
        need, contract = needed(fleet.engine, named), contract_of(kind)
        word = contract.chosen.word(need) if contract and contract.chosen and need else None
        return word or fleet.transfer.backend


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
    planner = _Planner(loaded, recorded or {}, running, secret, keys, starts_with_core(loaded))
    router_port = loaded.fleet.router.port
    given = [
        port
        for pool in loaded.pools()
        for index in range(pool.replicas)
        for _, step in pool.places(index)
        for port in pool.given_ports(step).values()
    ]
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

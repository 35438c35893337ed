"""What a fleet asks of its hosts: one want a host and pool, each value with where it was written."""

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from pdctl.engines.named import TRANSFER, Named, Reader, an_object, spoken
from pdctl.engines.words import interpreter
from pdctl.flags import Given, Reading, load, read_words
from pdctl.hosts.exec import LOCAL_NAMES
from pdctl.preflight.accelerators import Placed, on_cpu, placed_on
from pdctl_transfer.rules.outcome import Evidence

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Pool

READ_BY_TRANSFERS = re.compile(
    r"^(MC_|UCX_|NIXL_|NCCL_IB_|MOONCAKE_|MORI_|SGLANG_DISAGGREGATION_|SGLANG_HOST_IP|VLLM_HOST_IP)"
)
"""Variables that decide how bytes move."""

REAL = ("sglang", "vllm", "vllm-ascend")
"""Engines that have an environment of their own where `up` looks for one."""


class Want(Struct, frozen=True):
    """What one pool asks of one host."""

    host: str
    pool: str
    role: str
    engine: str
    backend: str
    protocol: str
    named: tuple[Named, ...]
    """Places that name devices, the one that the engine follows first."""
    env: Mapping[str, str]
    env_source: str
    ports: tuple[tuple[str, int], ...]
    ports_source: str
    environment: str | None = None
    """Virtual environment whose Python runs the engine."""
    found: str | None = None
    """The interpreter that `up` would find on this host for the engine, where no environment is named."""
    addresses: tuple[Evidence, ...] = ()
    """Addresses that the pool will tell its peers, with who said so."""
    placed: tuple[Placed, ...] = ()
    """Its engines on this host, with the accelerators that they take."""
    host_buffers: str | None = None
    """What says that transfers go from and to memory of the host, not of accelerators."""

    @property
    def devices(self) -> tuple[str, ...]:
        """The names that the engine goes by, as they are written; none: it chooses."""
        return self.named[0].names if self.named else ()

    @property
    def devices_source(self) -> str:
        """Where they are written."""
        return self.named[0].source if self.named else ""

    @property
    def python(self) -> str:
        """The interpreter that runs the engine, as the host knows it."""
        if self.environment:
            return f"{self.environment.rstrip('/')}/bin/python"
        return self.found or ("python3" if self.host else sys.executable)

    def evidence(self, name: str) -> Evidence:
        """A variable as evidence."""
        return Evidence(self.env_source, f"{name}={self.env.get(name, '')}")


class RouterWant(Struct, frozen=True):
    """The router's command line, as far as the file writes it."""

    kind: str
    args: tuple[str, ...]
    source: str
    port: int | None


def wants_of(loaded: "LoadedFleet", environment: Mapping[str, str] | None = None) -> tuple[Want, ...]:
    """One want for each pool and each host that it runs on.

    environment: variables that local engines inherit; None: those of this process.
    """
    inherited = transfer_variables() if environment is None else environment
    return tuple(
        _want(loaded, pool, host, inherited) for pool in loaded.pools() for host in dict.fromkeys(pool.hosts or [""])
    )


def _want(loaded: "LoadedFleet", pool: "Pool", host: str, environment: Mapping[str, str]) -> Want:
    fleet, engine = loaded.fleet, pool.engine or loaded.fleet.engine
    reading = read_words(load(engine), pool.args)
    inherited = environment if host in LOCAL_NAMES and fleet.launcher.kind == "local" else {}
    env = {**inherited, **{name: str(value) for name, value in pool.env.items()}}
    return Want(
        host=host,
        pool=pool.name,
        role=pool.role,
        engine=engine,
        backend=fleet.transfer.backend,
        protocol=fleet.transfer.protocol,
        named=spoken(loaded, pool, reading, env),
        env=env,
        env_source=loaded.where(f"{pool.key}.env") if pool.env else "environment",
        ports=() if fleet.external else _ports(pool, host),  # they are meant to be in use
        ports_source=loaded.where(f"{pool.key}.ports"),
        environment=pool.environment,
        found=interpreter(pool, engine) if host in LOCAL_NAMES and engine in REAL else None,
        addresses=_addresses(pool, loaded, reading.last("--host")),
        placed=placed_on(loaded, pool, host, reading),
        host_buffers=_host_buffers(loaded, pool, reading),
    )


def _ports(pool: "Pool", host: str) -> tuple[tuple[str, int], ...]:
    """The ports of the replicas on this host: they count up from the one that is written."""
    places = [pool.place(index) for index in range(pool.replicas)]
    steps = dict.fromkeys(step for where, step in places if where == (host or "localhost"))
    return tuple((purpose, pool.port(purpose, step)) for purpose in pool.ports for step in steps)


def this_host(backend: str, protocol: str, devices: Iterable[str], environment: str | None) -> Want:
    """What is asked of this machine where there is no fleet file."""
    return Want(
        host="",
        pool="this host",
        role="",
        engine="",
        backend=backend,
        protocol=protocol,
        named=named_here(backend, tuple(devices)),
        env=transfer_variables(),
        env_source="environment",
        ports=(),
        ports_source="",
        environment=environment,
    )


def named_here(backend: str, devices: tuple[str, ...]) -> tuple[Named, ...]:
    """Devices that `--device` names, in the spelling of the backend."""
    names = tuple(n if ":" in n else f"{n}:1" for n in devices) if backend == "nixl" else devices
    reader: Reader = "ucx" if backend == "nixl" else "split"
    return (Named("--device", "--device", ",".join(devices), reader, names),) if devices else ()


def router_of(loaded: "LoadedFleet") -> RouterWant:
    """What the fleet file says of its router."""
    router = loaded.fleet.router
    return RouterWant(router.kind, tuple(router.args), loaded.where("router.args"), router.port)


def transfer_variables() -> dict[str, str]:
    """Variables of this process that decide how bytes move."""
    return {name: value for name, value in os.environ.items() if READ_BY_TRANSFERS.match(name)}


ADDRESS_VARIABLES = ("SGLANG_HOST_IP", "VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST")


def _addresses(pool: "Pool", loaded: "LoadedFleet", host: Given | None) -> tuple[Evidence, ...]:
    named = [
        Evidence(loaded.where(f"{pool.key}.env.{name}"), pool.env[name])
        for name in ADDRESS_VARIABLES
        if name in pool.env
    ]
    if host is not None and host.value not in ("0.0.0.0", "::"):
        named.append(Evidence(loaded.where(f"{pool.key}.args.{host.index}"), host.value))
    return tuple(named)


def _host_buffers(loaded: "LoadedFleet", pool: "Pool", reading: Reading) -> str | None:
    """NIXL in vLLM copies through the host where `kv_buffer_device` is cpu; engines on CPUs have no other memory."""
    engine = pool.engine or loaded.fleet.engine
    if engine == "reference" or on_cpu(pool, reading):
        return "the engine runs on the CPU"
    own = reading.last(TRANSFER)
    config = an_object(own.value) if own is not None else loaded.fleet.transfer.options
    said = engine == "vllm" and loaded.fleet.transfer.backend == "nixl" and config.get("kv_buffer_device") == "cpu"
    return "kv_buffer_device is cpu" if said else None

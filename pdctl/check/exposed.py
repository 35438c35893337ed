"""What of a fleet listens beyond its own host without asking for a key: PD2016 to PD2019.

Judged by what the fleet file says, so that it is known before anything starts. Which ports really listen,
`pdctl status -o json` says.
"""

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pdctl.routers import ROUTERS
from pdctl_transfer.rules import Evidence, Finding
from pdctl_transfer.rules.outcome import Severity

if TYPE_CHECKING:
    from pdctl.fleet import LoadedFleet, Pool

EVERYWHERE: Final = {"mooncake": "ports of its own choice on every address of each engine's host"}
"""What a transfer library opens without being asked, and cannot be told not to."""
KEYLESS: Final = {
    "reference": (),
    "sglang": ("bootstrap",),
    "vllm": ("side_channel", "bootstrap"),
    "vllm-ascend": ("kv_port",),
}
"""Ports of an engine that ask for nothing even where it has a key. The reference engine's are signed."""


def exposed(loaded: "LoadedFleet", incurable: Severity = "warning") -> Iterator[Finding]:
    """One finding a culprit. incurable: how grave that is which no change of the file closes."""
    fleet, router = loaded.fleet, loaded.fleet.router
    opened = EVERYWHERE.get(fleet.transfer.backend)
    if opened:
        source = loaded.source("transfer.backend")
        evidence = (Evidence(source, f"transfer.backend: {fleet.transfer.backend}"),)
        yield Finding("PD2016", fleet.name, evidence, {"backend": fleet.transfer.backend, "opened": opened}, incurable)
    for pool in loaded.pools():
        yield from _pool(loaded, pool, incurable)
    kind = ROUTERS.get(router.kind)
    if kind is not None and not is_loopback(router.host):
        key = "router.url" if router.url else "router.host"
        evidence = (Evidence(loaded.source(key), f"{key}: {router.url or router.host}"),)
        if router.api_key_env is None and not (kind.asks and _engines_have_keys(loaded)):
            yield Finding("PD2018", "router", evidence, {"host": router.host, "kind": router.kind})
        if not kind.control:
            yield Finding("PD2019", "router", evidence, {"host": router.host, "kind": router.kind})


def _pool(loaded: "LoadedFleet", pool: "Pool", incurable: Severity) -> Iterator[Finding]:
    hosts = [host for host in pool.hosts if not is_loopback(host)]
    engine = pool.engine or loaded.fleet.engine
    keyless = KEYLESS[engine] if pool.role in ("prefill", "decode") else ()
    registry = ("registry",) if engine == "vllm" and pool.role == "prefill" and pool.core != "engine" else ()
    purposes = [*([] if pool.api_key_env else ["http"]), *keyless, *registry]
    if hosts and purposes:
        key = "hosts" if f"{pool.key}.hosts" in loaded else "urls"
        evidence = (Evidence(loaded.where(f"{pool.key}.{key}"), f"{key}: {', '.join(hosts[:4])}"),)
        yield Finding(
            "PD2017",
            pool.name,
            evidence,
            {"name": pool.name, "ports": ", ".join(purposes)},
            None if "http" in purposes else incurable,
        )


def _engines_have_keys(loaded: "LoadedFleet") -> bool:
    """The router then asks its clients for theirs."""
    return any(pool.api_key_env for pool in (*loaded.pools("prefill"), *loaded.pools("decode")))


def is_loopback(host: str) -> bool:
    """Whether an address, or a host's name, is this host's own and reached by nobody else."""
    name = host.rpartition("@")[2]
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

"""PD1040: the bootstrap port that a router tells decode engines must be the one that prefill listens on.

Decode asks there where prefill's ranks are. At another port nobody answers, or another prefill engine does: requests
hang for 300 s, or wait for pages that nobody sends.
"""

from collections.abc import Iterator

from pdctl.check.router_rules.routed import Placed, Routed
from pdctl.routers import needed
from pdctl.routers.contracts import BOOTSTRAP_PORT
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules import Evidence, Finding, Held, Outcome
from pdctl_transfer.rules.pair import setting

ASKED = frozenset({"bootstrap", "transfer-id"})
"""Ways to speak in which decode is told a bootstrap port."""


def check_bootstrap(fleet: Routed) -> Iterator[Outcome]:
    """One finding an engine, where both ports are stated; a router that names none means the usual one."""
    asked = {group.name for group in fleet.groups if group.sides and _asks(group.manifest)}
    engines = [one for one in fleet.engines if one.role == "prefill" and one.pool in asked and one.bootstrap]
    told = [pair for one in engines for pair in _told(fleet, one)]
    for engine, port, evidence in told:
        if port != engine.bootstrap:
            what = f"the router tells {port}, {engine.name} listens on {engine.bootstrap}"
            own = Evidence(engine.where, f"{engine.name}: bootstrap {engine.bootstrap}")
            yield Finding("PD1040", engine.pool, (evidence, own), {"what": what})
    if told and all(port == engine.bootstrap for engine, port, _ in told):
        yield Held("bootstrap", "router", f"{len(told)} prefill engines at the ports that the router tells")


def _asks(manifest: Manifest) -> bool:
    return needed(manifest.engine.name, setting(manifest, "connector")) in ASKED


def _told(fleet: Routed, engine: Placed) -> Iterator[tuple[Placed, int, Evidence]]:
    """The port that the router tells of an engine, and where it is told."""
    contract = fleet.contract
    if contract is not None and contract.port_variable:
        said = fleet.port_variable
        port = int(said.text) if said and said.text.isdecimal() else BOOTSTRAP_PORT
        yield engine, port, said or Evidence(fleet.evidence.source, f"no {contract.port_variable}: {BOOTSTRAP_PORT}")
        return
    for one in fleet.workers:
        if one.role == "prefill" and (engine.is_at(one) or (engine.http is None and engine.is_on(one))):
            text = f"--prefill {one.text} {one.bootstrap or ''}".rstrip()
            yield engine, one.bootstrap or BOOTSTRAP_PORT, Evidence(fleet.places[one.index], text)

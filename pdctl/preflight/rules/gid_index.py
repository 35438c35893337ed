"""PD2004: a GID index that is set names a GID that other machines can answer to, on every device that is used.

Mooncake reads MC_GID_INDEX once and for all devices; an empty entry ends with `GID is NULL`, a link-local or RoCE v1
one starts and never connects.
"""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import names_or, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import Want
from pdctl_topology import Port, choose_gid
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

VARIABLES = {"mooncake": ("MC_GID_INDEX",), "nixl": ("UCX_IB_GID_INDEX",)}


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a variable that is set; on InfiniBand the index does not matter."""
    for want, facts in over_rdma(snapshot):
        for variable in VARIABLES.get(want.backend, ()):
            text = want.env.get(variable)
            if text is None or text == "auto":
                continue
            faults = list(_faults(want, facts, text))
            evidence = (
                want.evidence(variable),
                *(Evidence(f"/sys/class/infiniband/{name}", why) for name, why in faults),
            )
            if faults:
                params = {"variable": variable, "index": text, "devices": ", ".join(name for name, _ in faults)}
                yield Finding("PD2004", label(want.host), evidence, {**params, "reason": faults[0][1]})
            else:
                yield Held("gid-index", label(want.host), f"{variable}={text} is routed on every device used")


def _faults(want: Want, facts: HostFacts, text: str) -> Iterator[tuple[str, str]]:
    wanted = names_or(want, facts, [hca.name for hca in facts.host.hcas])
    for hca in facts.host.hcas:
        for port in hca.ports:
            if hca.name in wanted and port.active and port.link_layer == "Ethernet":
                fault = _fault(port, facts.host.addresses, text)
                if fault is not None:
                    yield hca.name, fault


def _fault(port: Port, addresses: frozenset[str] | None, text: str) -> str | None:
    choice = choose_gid(port, addresses)
    better = f"; index {choice.gid.index} is {choice.gid.address}" if choice.gid else ""
    gid = next((gid for gid in port.gids if str(gid.index) == text), None)
    if gid is None:
        return f"entry {text} is empty{better}"
    why = {item.index: reason for item, reason in choice.passed_over}.get(gid.index)
    # an entry that is only second best still works
    return None if why is None or why.endswith("is better") else f"entry {text}, {gid.address}: {why}{better}"

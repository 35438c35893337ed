"""PD2013: devices that are to talk to each other have one link layer: InfiniBand does not reach Ethernet."""

from collections.abc import Iterator

from pdctl.preflight.rules.common import names_or, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome over all hosts that use RDMA."""
    layers: dict[str, list[str]] = {}
    for want, facts in over_rdma(snapshot):
        wanted = names_or(want, facts, facts.choice.hcas)
        for hca in facts.host.hcas:
            layer = next((port.link_layer for port in hca.ports if port.active), None)
            if hca.name in wanted and layer is not None:
                layers.setdefault(layer, []).append(f"{hca.name} on {label(want.host)}")
    if len(layers) > 1:
        evidence = tuple(Evidence(layer, ", ".join(dict.fromkeys(names))) for layer, names in sorted(layers.items()))
        yield Finding("PD2013", "all hosts", evidence, {"layers": " and ".join(sorted(layers))})
    elif layers:
        yield Held("link-layer", "all hosts", f"{next(iter(layers))} everywhere")

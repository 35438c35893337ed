"""PD2005, PD2008, PD2009: the devices that transfers will take are ones that they should take.

PD2005: a named device cannot carry a transfer. PD2008: it can, but it is not meant to (management, slow, another link
layer, a virtual function). PD2009: none is named, and an engine's own scan takes every active port, these included.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import named, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

UNFIT = ("not-an-adapter", "no-device-node", "limited-partition", "gid-unreadable", "no-routable-gid")


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """A finding for each unfit device that is named, or one for all that a scan would take."""
    for want, facts in over_rdma(snapshot):
        wanted = {hca.name for hca in named(want, facts)}
        faults = [item for item in facts.choice.excluded if item.cause != "down"]
        if want.devices:
            bad = [item for item in faults if item.hca in wanted]
            for item in bad:
                code = "PD2005" if item.cause in UNFIT else "PD2008"
                evidence = (Evidence(want.devices_source, item.hca), Evidence("discovery", item.reason))
                params = {"device": item.hca, "reason": item.reason, "instead": ", ".join(facts.choice.hcas) or "none"}
                yield Finding(code, label(want.host), evidence, params)
            fit = [item.hca for item in facts.choice.usable if item.hca in wanted]
            if fit and not bad:
                yield Held("device-fit", label(want.host), f"{', '.join(fit)} fit")
        elif faults:
            reasons = tuple(Evidence("discovery", f"{item.hca}: {item.reason}") for item in faults)
            params = {
                "devices": ", ".join(item.hca for item in faults),
                "instead": ",".join(facts.choice.hcas) or "none",
            }
            yield Finding("PD2009", label(want.host), reasons, params)

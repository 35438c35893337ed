"""PD2001: a host that is to transfer over RDMA has an RDMA device.

Without one Mooncake logs `Found 0 HCAs`, initialises with success, and moves data over TCP.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host and pool that asks for RDMA."""
    for want, facts in over_rdma(snapshot):
        if facts.host.hcas:
            yield Held("devices", label(want.host), ", ".join(hca.name for hca in facts.host.hcas))
            continue
        modules = facts.host.modules
        driver = "" if modules is None or "ib_uverbs" in modules else "; the module ib_uverbs is not loaded"
        evidence = (Evidence("/sys/class/infiniband", "empty or missing" + driver),)
        yield Finding("PD2001", label(want.host), evidence, {"backend": want.backend})

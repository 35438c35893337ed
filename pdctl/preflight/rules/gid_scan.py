"""PD2014: with no GID index set, an engine's own scan ends at a GID that is routed.

Mooncake prefers IPv4 entries and otherwise stops at the first with an interface. On ports with IPv6 only that is the
link-local one, and the peer on another subnet never answers.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import over_rdma, used
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_topology import Gid, Usable
from pdctl_transfer.rules.outcome import Evidence, Finding, Outcome

VARIABLES = {"mooncake": "MC_GID_INDEX", "nixl": "UCX_IB_GID_INDEX"}


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a host whose devices would be misread; an index that is set is judged by PD2004."""
    for want, facts in over_rdma(snapshot):
        variable = VARIABLES.get(want.backend)
        if variable is None or variable in want.env:
            continue
        misread = [(item, first) for item in used(want, facts) if (first := _before(item)) is not None]
        if not misread:
            continue
        evidence = tuple(Evidence(item.hca, f"GID {first.index} is {first.address}") for item, first in misread)
        item = misread[0][0]
        params = {"variable": variable, "device": item.hca, "index": item.gid.gid.index if item.gid.gid else "?"}
        yield Finding("PD2014", label(want.host), evidence, params)


def _before(item: Usable) -> Gid | None:
    """A link-local entry with an interface that stands before the routed one."""
    best = item.gid.gid
    if item.link_layer != "Ethernet" or best is None or best.scope == "v4-mapped":
        return None
    earlier = (gid for gid, _ in item.gid.passed_over if gid.index < best.index)
    return next((gid for gid in earlier if gid.scope == "link-local" and gid.netdev), None)

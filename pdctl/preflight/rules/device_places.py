"""PD2020: two places that name devices for one pool say the same, inherited variables included."""

from collections.abc import Iterator

from pdctl.check.flag_rules.device_places import apart
from pdctl.preflight.rules.common import over_rdma
from pdctl.preflight.snapshot import Snapshot
from pdctl_transfer.rules.outcome import Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a pool for which more than one place names devices."""
    for want, _ in over_rdma(snapshot):
        faults = list(apart(want.pool, want.named))
        yield from faults
        if len(want.named) > 1 and not faults:
            yield Held("device-places", want.pool, f"{' and '.join(one.what for one in want.named)} agree")

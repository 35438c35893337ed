"""PD2012: every GPU has one of its nearest adapters among those that are named.

A list of eight names in the order of their numbers often leaves some adapters idle and sends some GPUs across sockets.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import bare, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host with GPUs where devices are named."""
    for want, facts in over_rdma(snapshot):
        wanted = {bare(name) for name in want.devices}
        gpus = [item for item in facts.choice.assignments if item.gpu is not None and item.picks]
        if not wanted or not gpus:
            continue
        far = [item for item in gpus if wanted.isdisjoint(pick.hca for pick in item.picks)]
        if far:
            evidence = tuple(
                Evidence(
                    item.consumer, f"nearest: {', '.join(pick.hca for pick in item.picks)} ({item.picks[0].distance})"
                )
                for item in far
            )
            params = {"gpus": ", ".join(item.consumer for item in far), "instead": ",".join(facts.choice.hcas)}
            yield Finding("PD2012", label(want.host), evidence, params)
        else:
            yield Held("nearness", label(want.host), f"{len(gpus)} GPUs have a nearest adapter among those named")

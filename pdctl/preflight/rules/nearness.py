"""PD2012: every GPU has one of its nearest adapters among those that are named.

A list of eight names in the order of their numbers often leaves some adapters idle and sends some GPUs across sockets.
Only GPUs that the pool's engines take are asked; where a map names devices by GPU, each has its own to be near to.
"""

from collections.abc import Iterator

from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import bare, named, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.preflight.wants import Want
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a pool and host with GPUs where devices are named."""
    for want, facts in over_rdma(snapshot):
        wanted = {hca.name for hca in named(want, facts)}
        if wanted and any(one.alone for one in want.placed):
            yield Skipped("nearness", label(want.host), f"{want.pool}: which GPUs its pods are given is not known")
            continue
        mine = _taken(want, facts)
        gpus = [item for item in facts.choice.assignments if item.gpu is not None and item.picks]
        gpus = [item for item in gpus if mine is None or item.gpu in mine]
        if not wanted or not gpus:
            continue
        own = _by_gpu(want)
        far = [item for item in gpus if own.get(item.gpu or 0, wanted).isdisjoint(pick.hca for pick in item.picks)]
        if far:
            evidence = tuple(
                Evidence(
                    item.consumer, f"nearest: {', '.join(pick.hca for pick in item.picks)} ({item.picks[0].distance})"
                )
                for item in far
            )
            near = ",".join(dict.fromkeys(pick.hca for item in gpus for pick in item.picks))
            params = {"gpus": ", ".join(item.consumer for item in far), "instead": near}
            yield Finding("PD2012", label(want.host), evidence, params)
        else:
            yield Held("nearness", label(want.host), f"{len(gpus)} GPUs have a nearest adapter among those named")


def _taken(want: Want, facts: HostFacts) -> frozenset[int] | None:
    """The GPUs of all engines of the pool on this host; None where that is not known, or nothing says which."""
    taken = [one.taken(facts.host) for one in want.placed]
    known = [numbers for numbers in taken if numbers is not None]
    return frozenset(number for numbers in known for number in numbers) if taken and len(known) == len(taken) else None


def _by_gpu(want: Want) -> dict[int, set[str]]:
    """The devices of each GPU where a map names them. Its numbers are those that the process sees."""
    place = want.named[0]
    shown = want.placed[0].visible if want.placed else None
    found = {}
    for gpu, names in place.by_gpu.items():
        number = int(gpu)
        if shown is not None:
            if number >= len(shown) or not shown[number].isdigit():
                continue
            number = int(shown[number])
        found[number] = {bare(name) for name in names}
    return found

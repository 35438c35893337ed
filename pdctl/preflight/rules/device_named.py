"""PD2002, PD2015: a device that is named exists, and is named as its reader compares names.

Mooncake takes an unknown name for an empty filter: `Found 0 HCAs`, success, and TCP without a word. UCX warns once and
goes on with what is left. Names that are none of an HCA (interfaces, patterns) are PD2021's.
"""

from collections.abc import Iterator

from pdctl.engines.named import READERS, Named
from pdctl.preflight.facts import HostFacts
from pdctl.preflight.rules.common import bare, known, over_rdma
from pdctl.preflight.rules.device_spelling import PATTERN
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a name and host; nothing where no device is named or none exists (PD2001)."""
    for want, facts in over_rdma(snapshot):
        if not want.named or not facts.host.hcas:
            continue
        place = want.named[0]
        faults = [*_unknown(place, facts, label(want.host)), *_with_port(place, label(want.host))]
        yield from faults
        if not faults and place.names:
            yield Held("device-named", label(want.host), f"{place.text} exist")


def _unknown(place: Named, facts: HostFacts, subject: str) -> Iterator[Finding]:
    present = ", ".join(hca.name for hca in facts.host.hcas)
    for name in place.names:
        spelled_otherwise = facts.host.netdev(name) is not None or (place.reader != "ucx" and PATTERN & set(name))
        if spelled_otherwise or known(name.strip(), facts):
            continue
        evidence = (Evidence(place.source, place.text), Evidence("/sys/class/infiniband", present))
        # no guess at what was meant: these names differ by a digit
        yield Finding("PD2002", subject, evidence, {"device": bare(name), "instead": present})


def _with_port(place: Named, subject: str) -> Iterator[Finding]:
    if place.reader == "ucx":
        return
    for name in (name for name in place.names if ":" in name):
        params = {"device": name, "bare": bare(name), "reader": READERS[place.reader]}
        yield Finding("PD2015", subject, (Evidence(place.source, place.text),), params)

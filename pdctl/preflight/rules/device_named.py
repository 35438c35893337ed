"""PD2002, PD2015: a device that is named exists, and is named as its engine reads names.

Mooncake takes an unknown name for an empty filter: `Found 0 HCAs`, success, and TCP without a word.
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import bare, over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a name and host; nothing where no device is named or none exists (PD2001)."""
    for want, facts in over_rdma(snapshot):
        present = [hca.name for hca in facts.host.hcas]
        if not want.devices or not present:
            continue
        unknown = [name for name in map(bare, want.devices) if name not in present]
        for name in unknown:
            evidence = (
                Evidence(want.devices_source, ",".join(want.devices)),
                Evidence("/sys/class/infiniband", ", ".join(present)),
            )
            # no guess at what was meant: these names differ by a digit
            params = {"device": name, "instead": ", ".join(present)}
            yield Finding("PD2002", label(want.host), evidence, params)
        if want.engine == "sglang":
            for name in (name for name in want.devices if ":" in name):
                written = (Evidence(want.devices_source, ",".join(want.devices)),)
                yield Finding("PD2015", label(want.host), written, {"device": name, "bare": bare(name)})
        if not unknown:
            yield Held("device-named", label(want.host), f"{', '.join(want.devices)} exist")

"""PD2102, PD2103, PD2104: the transfer backend is installed, once, in the flavour that fits the host.

Mooncake comes as several packages that install the same files: the last one wins, and removing either removes both.
"""

from collections.abc import Iterator

from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

NAMES = {
    "mooncake": (
        "mooncake-transfer-engine",
        "mooncake-transfer-engine-cuda13",
        "mooncake-transfer-engine-non-cuda",
        "mooncake-transfer-engine-npu",
    ),
    "nixl": ("nixl", "nixl-cu12", "nixl-cu13"),
}
INSTALL = {
    "mooncake": "pip install mooncake-transfer-engine (or -non-cuda without an NVIDIA GPU)",
    "nixl": "pip install nixl-cu12",
}


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome an interpreter."""
    for want in snapshot.wants:
        programs, facts = snapshot.programs(want), snapshot.facts(want)
        names = NAMES.get(want.backend)
        if programs is None or names is None:
            continue
        found = [dist for dist in programs.distributions if dist.name in names]
        evidence = tuple(
            Evidence(programs.executable, f"{dist.name} {dist.version} from {dist.source}") for dist in found
        )
        subject = label(want.host)
        if not found:
            params = {"backend": want.backend, "python": programs.executable, "how": INSTALL[want.backend]}
            yield Finding("PD2103", subject, (), params)
        elif want.backend == "mooncake" and len(found) > 1:
            yield Finding("PD2102", subject, evidence, {"packages": " and ".join(dist.name for dist in found)})
        elif facts is not None and facts.host.gpus and found[0].name.endswith("non-cuda"):
            yield Finding("PD2104", subject, evidence, {"package": found[0].name, "gpus": len(facts.host.gpus)})
        else:
            yield Held("packages", subject, "; ".join(item.text for item in evidence))

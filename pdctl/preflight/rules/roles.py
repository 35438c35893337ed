"""PD2209: variables that decide how bytes move are set on both roles, or on neither.

A decode engine without what its prefill engines have answers its health check, and every request hangs.
"""

from collections.abc import Iterator

from pdctl.preflight.snapshot import Snapshot
from pdctl.preflight.wants import ADDRESS_VARIABLES, READ_BY_TRANSFERS
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome

PER_HOST = (
    *ADDRESS_VARIABLES,
    "UCX_NET_DEVICES",
    "MC_GID_INDEX",
    "UCX_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
)
"""Variables that may well differ from host to host."""


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a variable that one role has and the other lacks, or has otherwise."""
    sides = {role: [want for want in snapshot.wants if want.role == role] for role in ("prefill", "decode")}
    if not all(sides.values()):
        return
    names = sorted(
        {name for wants in sides.values() for want in wants for name in want.env if READ_BY_TRANSFERS.match(name)}
    )
    differing = 0
    for name in names:
        values = {role: sorted({want.env.get(name, "not set") for want in wants}) for role, wants in sides.items()}
        if name in PER_HOST or values["prefill"] == values["decode"]:
            continue
        differing += 1
        evidence = tuple(Evidence(sides[role][0].env_source, f"{role}: {', '.join(values[role])}") for role in values)
        texts = {role: ", ".join(found) for role, found in values.items()}
        yield Finding("PD2209", "prefill and decode", evidence, {"variable": name, **texts})
    if names and not differing:
        yield Held("roles", "prefill and decode", f"{len(names)} transfer variables agree")

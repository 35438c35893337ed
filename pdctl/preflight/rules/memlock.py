"""PD2006: as much memory may be locked as is to be registered.

A small limit shows as `Cannot allocate memory [12]` when buffers are registered, or, with UCX, as a silent fall back
to TCP. KV pools are tens of gigabytes, so a limit of a few is as good as none.
"""

import math
from collections.abc import Iterator

from pdctl.preflight.rules.common import over_rdma
from pdctl.preflight.snapshot import Snapshot, label
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Severity, Skipped

ENOUGH = 64 << 30
"""Bytes: above this a limit is a warning, since pools may still be larger."""


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a host."""
    for want, facts in over_rdma(snapshot):
        limit = facts.locked_bytes
        if limit is None:
            yield Skipped("memlock", label(want.host), "the limit of locked memory could not be read")
        elif math.isinf(limit):
            yield Held("memlock", label(want.host), "locked memory is not limited")
        else:
            text = f"{limit / (1 << 20):.4g} MiB"
            evidence = (Evidence("/proc/self/limits", f"Max locked memory {text}"),)
            severity: Severity = "error" if limit < ENOUGH else "warning"
            yield Finding("PD2006", label(want.host), evidence, {"limit": text}, severity)

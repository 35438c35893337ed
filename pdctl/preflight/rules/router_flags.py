"""PD2107: a switch of the router is given no value: `--pd-disaggregation true` ends it with status 2."""

from collections.abc import Iterator

from pdctl.flags import load, read_words, values_of_switches
from pdctl.preflight.snapshot import Snapshot
from pdctl.routers import ROUTERS
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a switch with a value."""
    router = snapshot.router
    if router is None or router.kind not in ROUTERS:
        return
    wrong = list(values_of_switches(read_words(load(router.kind), router.args), router.args))
    for flag, value, _ in wrong:
        evidence = (Evidence(router.source, " ".join(router.args)),)
        yield Finding("PD2107", "router", evidence, {"flag": flag, "value": value, "router": router.kind})
    if not wrong and router.args:
        yield Held("router-flags", "router", "no switch is given a value")

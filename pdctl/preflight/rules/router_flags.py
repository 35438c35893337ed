"""PD2107: a switch of the router is given no value: `--pd-disaggregation true` ends it with status 2."""

from collections.abc import Iterator
from itertools import pairwise

from pdctl.preflight.snapshot import Snapshot
from pdctl.routers import ROUTERS
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One finding a switch with a value."""
    router = snapshot.router
    if router is None:
        return
    switches = ROUTERS[router.kind].switches | {ROUTERS[router.kind].pd}
    words = (*router.args, "")
    wrong = [
        (flag, word.partition("=")[2] or following)
        for word, following in pairwise(words)
        if (flag := word.partition("=")[0]) in switches
        and ("=" in word or (following and not following.startswith("-")))
    ]
    for flag, value in wrong:
        evidence = (Evidence(router.source, " ".join(router.args)),)
        yield Finding("PD2107", "router", evidence, {"flag": flag, "value": value, "router": router.kind})
    if not wrong and router.args:
        yield Held("router-flags", "router", "no switch is given a value")

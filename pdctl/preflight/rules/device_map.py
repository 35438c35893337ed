"""PD2029: a map of devices by GPU can be read, and has an entry for every GPU that the engine takes.

SGLang looks its own number up, as the process counts GPUs, and ends with `No IB devices configured for GPU N`
(mooncake_transfer_engine.py:107 of 0.5.23).
"""

from collections.abc import Iterator

from pdctl.preflight.rules.common import readable
from pdctl.preflight.snapshot import Snapshot, label
from pdctl.report.build import spans
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Skipped


def check(snapshot: Snapshot) -> Iterator[Outcome]:
    """One outcome a pool that names its devices by GPU."""
    for want, _ in readable(snapshot):
        place = want.named[0] if want.named else None
        if place is None or not (place.by_gpu or place.fault):
            continue
        subject, written = f"{want.pool} on {label(want.host)}", (Evidence(place.source, place.text),)
        if place.fault and want.host and place.text.endswith(".json"):
            yield Skipped("device-map", subject, f"{place.text} lies on that host and was not read")
            continue
        needed = {str(one.first + one.step * rank) for one in want.placed for rank in range(one.ranks)}
        missing = sorted(needed - place.by_gpu.keys(), key=int)
        if place.fault or missing:
            reason = place.fault or f"no entry for {spans([f'GPU {number}' for number in missing])}"
            yield Finding("PD2029", subject, written, {"place": place.what, "reason": reason})
        else:
            yield Held("device-map", subject, f"{place.what} has devices for GPU {', '.join(sorted(needed, key=int))}")

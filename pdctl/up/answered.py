"""Which units have answered since they were last started: a mark beside the record, of that very process.

Without it a unit that hangs could not be told from one that still loads.
"""

from contextlib import suppress
from typing import Final

from msgspec import Struct

from pdctl.launch.base import Launcher, UnitStatus
from pdctl.launch.record import StateError, read, write

_FILE: Final = "answered.json"


class _Answered(Struct, frozen=True):
    pid: int
    since: float


def note_answer(launcher: Launcher, status: UnitStatus) -> None:
    """Remember that this run of the unit answered. Where that cannot be written it is forgotten: it is no more than a
    better word in `status`."""
    mark = _mark(status)
    if mark is None or had_answered(launcher, status.name, status):
        return
    with suppress(OSError):
        write(launcher.log(status.name).with_name(_FILE), mark)


def had_answered(launcher: Launcher, name: str, status: UnitStatus | None = None) -> bool:
    """Whether the unit answered since it was last started, by itself or by its guard."""
    mark = _mark(status or launcher.status(name))
    try:
        return mark is not None and read(launcher.log(name).with_name(_FILE), _Answered) == mark
    except StateError:
        return False


def _mark(status: UnitStatus) -> _Answered | None:
    if status.pid is None or status.since is None:
        return None
    return _Answered(status.pid, status.since)

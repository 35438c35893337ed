"""`up` is hit at some moment: what is hit, in which phase, what `up` says of it, and that `down` leaves nothing."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL

from pdctl.launch import cgroup
from pdctl.launch.record import UnitRecord, read
from pdctl.launch.state import FleetFolder
from tests.integration.up.conftest import Fleet, until

KILL, STOP, TERM, INT, HUP = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@dataclass(frozen=True)
class Moment:
    """`target` (`cli`, `guard:UNIT`, `unit:UNIT`) gets `number` while `phase` is held open."""

    target: str
    number: signal.Signals
    phase: str
    status: int
    """What `up` ends with; below 0 the signal that ended it."""
    says: str = ""
    """Words of its standard error, waited for before `then`."""
    then: signal.Signals | str | None = None
    """What happens next: a signal to `up`, or `open`, so that the phase can end."""


MOMENTS = (
    Moment("cli", KILL, "preflight", -KILL),
    Moment("cli", KILL, "prefill", -KILL),
    Moment("guard:prefill-0", KILL, "prefill", 3, "PD3006  prefill-0 ended before it was ready: lost"),
    Moment("unit:prefill-0", KILL, "prefill", 3, "PD3006  prefill-0 ended before it was ready: killed by SIGKILL"),
    Moment("guard:prefill-0", STOP, "prefill", 130, "prefill-0 is stopped by a signal", INT),
    Moment("cli", HUP, "decode", 130, "PD3001"),
    Moment("cli", KILL, "decode", -KILL),
    Moment("unit:prefill-0", KILL, "decode", 0, "prefill-0 ended (killed by SIGKILL) and is started again", "open"),
    Moment("unit:prefill-0", STOP, "decode", 130, "prefill-0 is stopped by a signal", TERM),
    Moment("unit:decode-0", STOP, "decode", 130, "decode-0 is stopped by a signal", TERM),
    Moment("guard:decode-0", KILL, "router", 3, "PD3019  decode-0 was ready and is gone: its guard was killed"),
    Moment("unit:router", KILL, "router", 3, "PD3006  router ended before it was ready: killed by SIGKILL"),
    Moment("cli", TERM, "router", 130, "PD3001"),
    Moment("cli", KILL, "completion", -KILL),
    Moment("unit:router", STOP, "completion", 130, "router is stopped by a signal", TERM),
    Moment("unit:prefill-0", STOP, "pairs", 130, "prefill-0 is stopped by a signal", TERM),
)
"""The first fifteen are those of a trial in which every one left something else behind."""

_HELD = {"preflight": "prefill", "prefill": "prefill", "decode": "decode", "router": "router"}
"""Who is mute, so that the phase does not end by itself; the remaining phases hang in a request."""


def name_of(moment: Moment) -> str:
    """For the test's name."""
    return f"{moment.number.name}-{moment.target.replace(':', '-')}-{moment.phase}"


def hit(fleet: Fleet, moment: Moment, folder: Path) -> None:
    """Bring the fleet up, hit it, take it down, and look for what is left."""
    mute = folder / "mute"
    mute.touch()
    _write(fleet, moment.phase, mute)
    said = folder / "said"
    with said.open("w") as err:
        up = fleet.start(
            "up",
            str(fleet.path),
            *(["--skip-phase", "preflight"] * (moment.phase != "preflight")),
            stdout=DEVNULL,
            stderr=err,
        )
        until(lambda: _reached(fleet, moment), 60)
        os.kill(up.pid if moment.target == "cli" else _pid(fleet, moment.target), moment.number)
        if moment.then is not None:
            until(lambda: moment.says in said.read_text(), 60)
            mute.unlink() if moment.then == "open" else up.send_signal(moment.then)
        assert up.wait(90) == moment.status, said.read_text()
    assert moment.says in said.read_text()
    if moment.status not in (0, -KILL):
        assert fleet.left() == []
    down = fleet.down()
    assert down.returncode == 0, down.stderr
    assert fleet.left() == []
    assert _cgroups(fleet) == []
    assert fleet.status()["phase"] == "down"


def _write(fleet: Fleet, phase: str, mute: Path) -> None:
    held = {
        _HELD.get(phase, ""): f"[--mute-if, {mute}]",
        {"pairs": "decode", "completion": "router"}.get(phase, ""): "[--misbehave, hang]",
    }
    pools = {role: f"{{args: {held[role]}}}" for role in ("prefill", "decode") if role in held}
    fleet.write(**pools, more=f"router: {{args: {held['router']}}}\n" if "router" in held else "")


def _reached(fleet: Fleet, moment: Moment) -> bool:
    state = FleetFolder(fleet.name).read()
    if state is None or state.phase != moment.phase:
        return False
    return moment.target == "cli" or _pid(fleet, moment.target) > 0


def _pid(fleet: Fleet, target: str) -> int:
    kind, _, unit = target.partition(":")
    record = read(FleetFolder(fleet.name).units / unit / "state.json", UnitRecord)
    pid = record and (record.guard_pid if kind == "guard" else record.pid)
    return pid or 0


def _cgroups(fleet: Fleet) -> list[Path]:
    parent = cgroup._folder_of("self")
    names = [cgroup.name_of(str(folder)) for folder in FleetFolder(fleet.name).units.glob("*")]
    return [parent / name for name in names if parent and name and (parent / name).exists()]

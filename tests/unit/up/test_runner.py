"""What `up` says when two things go wrong at once."""

from pathlib import Path

import pytest

from pdctl.errors import GateError
from pdctl.fleet import load_fleet
from pdctl.launch.record import UnwritableError
from pdctl.launch.state import FleetFolder, FleetState
from pdctl.up.context import Bringup
from pdctl.up.phases import Phase
from pdctl.up.runner import bring_up

FLEET = (
    "schema: pdctl.fleet/v1\nname: two\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\n"
    "prefill: {}\ndecode: {}\n"
)


def test_what_failed_is_said_and_not_that_it_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up while a phase fails hides the cause of neither the failure nor the clean-up."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    folder = FleetFolder("two")
    written: list[str] = []
    write = FleetFolder.write

    def once(self: FleetFolder, state: FleetState) -> None:
        if written:
            raise UnwritableError(folder.path, OSError(28, "No space left on device"))
        written.append(state.phase)
        write(self, state)

    def fails(_: Bringup) -> str:
        raise GateError("the unit ended", code="PD3006")

    monkeypatch.setattr(FleetFolder, "write", once)
    with pytest.raises(GateError, match="the unit ended"):
        bring_up(load_fleet(tmp_path / "fleet.yaml"), phases=[Phase("first", "begins", fails)])
    assert written == ["first"]
    state = folder.read()
    assert state is not None
    assert state.phase == "first"

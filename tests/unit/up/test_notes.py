"""What `status` says beside the table: what was stopped by a signal, and where a gap of clean-up stays."""

import pytest

from pdctl.up.status import UNCONTAINED, FleetView, UnitView


def view(*units: UnitView) -> FleetView:
    return FleetView("f", "up", False, None, units)


def unit(contained: bool | None = True, frozen: int | None = None) -> UnitView:
    return UnitView("decode-0", "decode", 1, 2, "ready", 0, None, None, contained=contained, frozen=frozen)


@pytest.mark.parametrize(
    ("contained", "notes"), [((True, True), []), ((True, None), []), ((), []), ((True, False), [UNCONTAINED])]
)
def test_a_unit_without_a_cgroup_is_said_in_words_and_in_the_document(
    contained: tuple[bool | None, ...], notes: list[str]
) -> None:
    found = view(*map(unit, contained))
    assert found.notes == notes
    assert found.document()["notes"] == notes
    assert [one["contained"] for one in found.document()["units"]] == list(contained)


def test_a_unit_that_a_signal_has_stopped_is_said() -> None:
    assert view(unit(frozen=7)).notes == ["decode-0 is stopped by a signal; `kill -CONT 7` lets it go on"]

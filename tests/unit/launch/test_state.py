"""The fleet's folder: one command at a time, state replaced whole, nothing believed that cannot be read."""

import json
from pathlib import Path

import pytest

from pdctl.errors import GateError, PdctlError
from pdctl.launch.record import StateError
from pdctl.launch.state import FleetFolder, FleetState, UnreadableError, known_fleets, state_root


def state(phase: str = "up") -> FleetState:
    return FleetState(fleet="f", file="/f.yaml", digest="sha256:0", pdctl="0", phase=phase, since=0.0)


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder = FleetFolder("f", tmp_path)
    assert folder.read() is None
    with folder.lock("up"):
        folder.write(state("prefill"))
        folder.write(state())
    assert folder.read() == state()
    assert sorted(path.name for path in folder.path.iterdir()) == ["fleet.json", "lock"]


@pytest.mark.code("PD3004")
def test_a_second_command_is_told_who_holds_the_fleet(tmp_path: Path) -> None:
    folder = FleetFolder("f", tmp_path)
    assert not folder.is_locked()
    with folder.lock("up"):
        assert folder.is_locked()
        with pytest.raises(GateError, match=r"f: pdctl up \(pid \d+\) is at work"), folder.lock("down"):
            pass
    assert not folder.is_locked()


@pytest.mark.code("PD3005")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"fleet": 1}', "\x00\x01", '{"schema": "pdctl.state/v1"}'])
def test_a_damaged_file_is_an_error_that_says_the_way_out(tmp_path: Path, content: str) -> None:
    folder = FleetFolder("f", tmp_path)
    folder.path.mkdir()
    (folder.path / "fleet.json").write_text(content)
    with pytest.raises(StateError, match=r"fleet\.json: the state file is damaged") as caught:
        folder.read()
    assert caught.value.hint == "`pdctl down f` ends what it may have described, and clears it"


@pytest.mark.code("PD3005")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "pdctl.state/v9"}, r"its schema is 'pdctl.state/v9', this one reads pdctl.state/v1"),
        ({"units": [{"name": "u", "role": "r", "host": "h", "ports": {}}]}, "is damaged: u has no port"),
    ],
)
def test_a_record_of_another_kind_is_not_read_as_ours(tmp_path: Path, change: dict[str, object], says: str) -> None:
    """`status` ended with `KeyError: 'http'`."""
    known = {"fleet": "f", "file": "", "digest": "", "pdctl": "9", "phase": "up", "since": 0}
    folder = FleetFolder("f", tmp_path)
    folder.path.mkdir()
    (folder.path / "fleet.json").write_text(json.dumps(known))
    assert folder.read() is not None
    (folder.path / "fleet.json").write_text(json.dumps({**known, **change}))
    with pytest.raises(StateError, match=says):
        folder.read()


@pytest.mark.code("PD0042")
def test_a_root_that_cannot_be_searched_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_fleets(tmp_path / "none") == ()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name, reason in (("file", "not a directory"), ("loop", "too many levels of symbolic links")):
        with pytest.raises(UnreadableError, match=f"cannot look for fleets here: {reason}"):
            known_fleets(tmp_path / name)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    with pytest.raises(UnreadableError, match="no home folder"):
        state_root()


def _no_home() -> Path:
    """What `Path.home` does for a user that no table knows."""
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.code("PD3016")
def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(PdctlError, match="cannot keep state here: not a directory") as caught,
        FleetFolder("f", tmp_path / "file").lock("up"),
    ):
        pass
    assert (caught.value.code, caught.value.hint) == (
        "PD3016",
        "something on the way there is no folder: move it, or set XDG_STATE_HOME to another",
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [("/s", "/s/pdctl"), ("relative", "/home/o/.local/state/pdctl"), ("", "/home/o/.local/state/pdctl")],
)
def test_the_state_lies_where_the_xdg_specification_says(
    given: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/o")
    monkeypatch.setenv("XDG_STATE_HOME", given)
    assert state_root() == Path(expected)

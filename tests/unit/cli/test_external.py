"""Commands on a fleet that somebody else started, as their user."""

from pathlib import Path

import pytest

from pdctl.cli.app import main
from pdctl.launch.state import FleetFolder, FleetState, state_root

FLEET = """\
schema: pdctl.fleet/v1
name: prod
model: {path: builtin:tiny-llama}
engine: sglang
launcher: {kind: external}
prefill: {urls: [http://127.0.0.1:1]}
decode: {urls: [http://127.0.0.1:2]}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "prod.yaml"
    path.write_text(FLEET)
    return str(path)


@pytest.mark.code("PD3119")
@pytest.mark.parametrize("command", [("up",), ("up", "--plan"), ("restart",), ("restart", "-q"), ("down",)])
def test_what_would_start_or_end_something_refuses_before_anything_else(
    file: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], file, *command[1:]]) == 2
    said = capsys.readouterr()
    assert (said.out, "PD3119" in said.err, "prod is an external fleet" in said.err) == ("", True, True)
    assert not (state_root() / "prod").exists()


def test_a_fleet_of_the_same_name_that_pdctl_started_is_left_alone(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`down FILE` must not end the other one, and says how to."""
    folder = FleetFolder("prod")
    with folder.lock("up"):
        state = FleetState(
            fleet="prod", file="/elsewhere.yaml", digest="", pdctl="0", phase="up", since=0.0, url="http://127.0.0.1:1"
        )
        folder.write(state)
    assert main(["down", file]) == 2
    assert "`pdctl down prod` ends that one" in capsys.readouterr().err
    assert folder.read() == state

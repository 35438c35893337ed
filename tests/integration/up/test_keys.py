"""Keys end to end, with real engines and the real router: asked for, handed over unseen, used by pdctl itself."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdctl.cli.app import main
from pdctl.engines.answer import complete
from pdctl.engines.http import Rejected, get_json, post_json, request
from pdctl.fleet import load_fleet
from pdctl.launch.state import FleetFolder
from pdctl.up.restart import restart
from pdctl.up.runner import bring_up
from pdctl.up.status import fleet_status
from pdctl.up.takedown import bring_down
from tests.integration.up.conftest import Fleet

pytestmark = pytest.mark.integration
KEY = "hunter2-hunter2"
VARIABLE = "KEYED_FLEET_KEY"
FOREIGN = {"url": "http://127.0.0.1:9", "worker_type": "decode"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("keyed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        patch.setenv(VARIABLE, KEY)
        path = home / "keyed.yaml"
        path.write_text(
            "schema: pdctl.fleet/v1\nname: keyed\nmodel: {path: builtin:tiny-hybrid}\nengine: reference\n"
            f"transfer: {{protocol: tcp}}\nprefill: {{api_key_env: {VARIABLE}}}\ndecode: {{api_key_env: {VARIABLE}}}\n"
            f"router: {{api_key_env: {VARIABLE}}}\n"
        )
        state = bring_up(load_fleet(path))
        try:
            yield SimpleNamespace(home=home, path=path, state=state, units={unit.role: unit for unit in state.units})
        finally:
            bring_down("keyed")


@pytest.fixture(autouse=True)
def _its_state(keyed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(keyed.home))
    monkeypatch.setenv(VARIABLE, KEY)


def test_it_came_up_to_its_completion(keyed: Any) -> None:
    assert [phase.outcome for phase in keyed.state.phases if phase.name in ("pairs", "completion")] == ["done"] * 2
    assert [unit.state for unit in fleet_status("keyed").units] == ["ready"] * 3


@pytest.mark.code("PD3057")
@pytest.mark.parametrize("role", ["prefill", "decode", "router"])
@pytest.mark.parametrize("key", [None, "another"])
def test_nobody_else_is_served(keyed: Any, role: str, key: str | None) -> None:
    with pytest.raises(Rejected) as caught:
        post_json(f"{keyed.units[role].url}/v1/completions", {"model": "tiny-hybrid", "prompt": "a"}, 20, key=key)
    assert caught.value.status == 401


def test_the_list_of_workers_is_pdctls_own(keyed: Any) -> None:
    url, control = keyed.units["router"].url, FleetFolder("keyed").control_key()
    for key in (None, KEY, "another"):
        assert request(f"{url}/workers", body=FOREIGN, key=key)[0] == 401
        assert request(f"{url}/workers", key=key)[0] == 401
        assert request(f"{url}/workers/x", method="DELETE", key=key)[0] == 401
    workers = get_json(f"{url}/workers", key=control)["workers"]
    assert {worker["url"] for worker in workers} == {keyed.units[role].url for role in ("prefill", "decode")}


def test_no_command_line_and_no_state_shows_a_key(keyed: Any) -> None:
    folder = FleetFolder("keyed")
    control = folder.control_key()
    assert (folder.path / "control").stat().st_mode & 0o777 == 0o600
    for unit in fleet_status("keyed").units:
        words = Path(f"/proc/{unit.pid}/cmdline").read_text()
        assert KEY not in words
        assert control not in words
    files = [path for path in folder.path.rglob("*") if path.is_file() and path.name not in ("secret", "control")]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes() or control.encode() in path.read_bytes()]


@pytest.mark.code("PD1025")
def test_a_live_check_uses_them_and_says_when_they_are_missing(
    keyed: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(keyed.path), "--live", "-o", "json"]) == 0
    capsys.readouterr()
    monkeypatch.delenv(VARIABLE)
    assert main(["check", str(keyed.path), "--live", "-o", "json"]) == 3
    found = [one for one in json.loads(capsys.readouterr().out)["findings"] if one["severity"] == "error"]
    assert [one["code"] for one in found] == ["PD1025"] * 2
    assert all(f"{VARIABLE} is not set" in one["message"] for one in found)
    assert [unit.state for unit in fleet_status("keyed").units] == ["ready"] * 3, "health needs no key"


def test_an_engine_is_restarted_by_the_routers_list(keyed: Any) -> None:
    """Off the list and on it again takes the control key, and the router is told the engine's."""
    before = {unit.name: unit.pid for unit in fleet_status("keyed").units}
    restart(load_fleet(keyed.path), ["decode-0"])
    after = {unit.name: unit.pid for unit in fleet_status("keyed").units}
    assert {name for name in after if after[name] != before[name]} == {"decode-0"}
    assert complete(keyed.units["router"].url, "tiny-hybrid", "hello", 4, 60, KEY).steps


@pytest.mark.code("PD0050")
def test_a_missing_key_is_told_before_anything_starts(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    fleet.write(prefill=f"{{api_key_env: {VARIABLE}}}")
    up = fleet.up()
    assert up.returncode == 2
    assert f"PD0050 {fleet.path}:6  prefill.api_key_env: the environment variable {VARIABLE} is not set" in up.stderr
    assert not (FleetFolder(fleet.name).path / "units").exists()
    assert "PDCTL_API_KEY" in fleet.run("up", str(fleet.path), "--plan").stdout

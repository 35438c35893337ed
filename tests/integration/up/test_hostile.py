"""Endpoints that drip, never end, are deep, wide, compressed or long-headed, or send one elsewhere, in the place of
units: each costs its own line, in time and in little memory, whoever asks."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdctl.check.live import TIMEOUT_S
from pdctl.engines import adapter
from pdctl.engines.base import Instance
from pdctl.errors import GateError
from pdctl.fleet import load_fleet
from pdctl.launch.base import Unit
from pdctl.launch.local import LocalLauncher
from pdctl.launch.state import FleetFolder, FleetState, UnitEntry
from pdctl.up import alike
from pdctl.up.context import Gate, Silent
from pdctl.up.ports import PortBook
from pdctl.up.wait import wait_ready
from tests.hostile import ALIVE, MODES
from tests.integration.up.conftest import ROOT, until

pytestmark = pytest.mark.integration

UNITS = ("drip", "drip_headers", "endless", "deep", "bomb", "header", "redirect")
PEAK_KIB = 200 * 1024
SLACK_S = 12.0
"""A loaded machine is slow; what has no deadline never ends."""
NAME = "hostile"

_MEASURED = """\
import sys
from pdctl.cli.app import main
from tests.hostile import peak_kib
status = main(sys.argv[1:])
print("peak", peak_kib(), file=sys.stderr)
sys.exit(status)
"""


def name_of(mode: str) -> str:
    """As a unit: `drip_headers` → `drip-headers-0`."""
    return f"{mode.replace('_', '-')}-0"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A fleet that is up, of real units: each decode engine does one harm, so do prefill and the router."""
    home = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home))
        folder, book = FleetFolder(NAME), PortBook()
        pools = ", ".join(f"{{name: {name_of(mode)[:-2]}}}" for mode in UNITS)
        path = home / "fleet.yaml"
        path.write_text(
            f"schema: pdctl.fleet/v1\nname: {NAME}\nmodel: {{path: builtin:tiny-hybrid}}\nengine: reference\n"
            f"transfer: {{protocol: tcp}}\nprefill: {{}}\ndecode: [{pools}]\n"
        )
        harm = {"prefill-0": "drip", **{name_of(mode): mode for mode in UNITS}, "router": "drip_headers"}
        ports = {name: book.free("127.0.0.1") for name in harm}
        launcher = LocalLauncher(folder.units)
        with folder.lock("up"):  # makes the folder
            for name, mode in harm.items():
                argv = (sys.executable, "-m", "tests.hostile", mode, "--port", str(ports[name]))
                launcher.start(Unit(name, "decode", argv, cwd=str(ROOT), ports={"http": ports[name]}))
            entries = tuple(UnitEntry(name, "decode", "127.0.0.1", {"http": ports[name]}) for name in harm)
            folder.write(
                FleetState(
                    fleet=NAME, file=str(path), digest="", pdctl="", phase="up", since=time.time(),
                    url=f"http://127.0.0.1:{ports['router']}", units=entries,
                )
            )  # fmt: skip
        try:
            from pdctl.up.ports import is_free

            until(lambda: not any(is_free("127.0.0.1", port) for port in ports.values()))
            yield SimpleNamespace(home=home, path=path, ports=ports, harm=harm)
        finally:
            launcher.stop(list(harm))


def measured(fleet: Any, *words: str) -> tuple[int, Any, int, float, str]:
    """Exit status, document, peak in KiB, seconds, and the standard error of one command."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *words, "-o", "json"],
        cwd=ROOT, env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": str(fleet.home)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    peak = int(done.stderr.split()[-1])
    return done.returncode, json.loads(done.stdout), peak, time.monotonic() - began, done.stderr


def test_status_has_a_line_for_each(fleet: Any) -> None:
    status, document, peak, seconds, _ = measured(fleet, "status", NAME)
    assert (status, seconds < 1.0 + SLACK_S) == (3, True)
    assert peak < PEAK_KIB
    found = {unit["name"]: unit["state"] for unit in document["units"]}
    assert found == {name: "ready" if mode in ALIVE else "starting" for name, mode in fleet.harm.items()}


@pytest.mark.code("PD1025")
def test_a_live_check_has_a_finding_for_each(fleet: Any) -> None:
    status, report, peak, seconds, _ = measured(fleet, "check", str(fleet.path), "--live")
    assert (status, seconds < TIMEOUT_S + SLACK_S) == (3, True)
    assert peak < PEAK_KIB
    found = [(finding["code"], finding["subject"]) for finding in report["findings"] if finding["severity"] == "error"]
    assert sorted(found) == sorted(("PD1025", name) for name in fleet.harm if name != "router")
    assert all("\n" not in finding["message"] for finding in report["findings"])


@pytest.mark.code("PD3007")
@pytest.mark.parametrize("mode", [mode for mode in UNITS if mode not in ALIVE])
def test_a_gate_has_its_deadline(fleet: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one answer takes as long as all may."""
    monkeypatch.setattr("pdctl.up.wait.ANSWER_S", 60.0)
    unit = Unit(name_of(mode), "decode", (), ports={"http": fleet.ports[name_of(mode)]})
    launcher = LocalLauncher(fleet.home / "pdctl" / NAME / "units")
    run = cast(Any, SimpleNamespace(launcher=launcher, events=Silent(), gates={}, opened={}))
    began = time.monotonic()
    with pytest.raises(GateError, match="does not answer") as caught:
        wait_ready(run, [Gate(unit, f"http://127.0.0.1:{unit.ports['http']}/health", 0.5)])
    assert (caught.value.code, time.monotonic() - began < SLACK_S) == ("PD3007", True)


def _refused(call: Any) -> GateError:
    began = time.monotonic()
    with pytest.raises(GateError) as caught:
        call()
    assert time.monotonic() - began < SLACK_S
    return caught.value


@pytest.mark.code("PD3008")
@pytest.mark.parametrize("engine", ["reference", "sglang", "vllm"])
def test_a_pairs_probe_has_its_deadline(engine: str, hostiles: dict[str, int], tmp_path: Path) -> None:
    """Every harm at once, on both sides."""
    (tmp_path / "f.yaml").write_text(
        f"schema: pdctl.fleet/v1\nname: p\nmodel: {{path: m}}\nengine: {engine}\nprefill: {{}}\ndecode: {{}}\n"
    )
    loaded = load_fleet(tmp_path / "f.yaml")

    def ask(port: int) -> GateError:
        sides = [
            Instance(f"{pool.role}-0", pool, loaded.fleet, "m", "127.0.0.1", {"http": port, "bootstrap": port})
            for pool in (*loaded.pools("prefill"), *loaded.pools("decode"))
        ]
        return _refused(lambda: adapter(engine).probe(*sides, "hello", 4, 0.5))

    with ThreadPoolExecutor(len(hostiles)) as workers:
        found = dict(zip(hostiles, workers.map(ask, hostiles.values()), strict=True))
    assert {mode: error.code for mode, error in found.items()} == dict.fromkeys(MODES, "PD3008")
    assert all(error.message.isprintable() for error in found.values())


@pytest.mark.code("PD3011")
def test_the_completion_has_its_deadline(hostiles: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike, "COMPLETION_S", 0.5)
    run = cast(
        Any,
        SimpleNamespace(
            launcher=SimpleNamespace(log=lambda name: Path("/dev/null")),
            opened={},
        ),
    )

    def ask(port: int) -> GateError:
        return _refused(lambda: alike.complete_at(run, f"http://127.0.0.1:{port}", "router", name="m"))

    with ThreadPoolExecutor(len(hostiles)) as workers:
        found = dict(zip(hostiles, workers.map(ask, hostiles.values()), strict=True))
    assert {mode: error.code for mode, error in found.items()} == dict.fromkeys(MODES, "PD3011")

"""The real engines of the default fleet behind the real router: what `make demo` shows, smaller, and then killed."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import yaml

import pdctl.demo
from pdctl.demo.compare import ask, ask_all, compare, make_prompts
from pdctl.engines.alike import NONE, judge
from pdctl.engines.alike import compare as difference
from pdctl.engines.answer import complete
from pdctl.engines.http import Unreachable, request
from pdctl.fleet import LoadedFleet, load_fleet
from pdctl.launch import process
from pdctl.launch.state import FleetFolder, FleetState
from pdctl.up.context import Silent
from pdctl.up.drain import under_way
from pdctl.up.restart import restart
from pdctl.up.runner import bring_up
from pdctl.up.status import fleet_status
from pdctl.up.takedown import bring_down
from pdctl_transfer.session import Options
from pdctl_transfer.session.drive.client import Routes
from pdctl_transfer.session.drive.loop import Loop
from tests.hostile_folder import HostileFolder
from tests.integration.up.conftest import until

pytestmark = pytest.mark.integration
DEMO = Path(pdctl.demo.__file__).with_name("fleet.yaml")
EXAMPLE = Path(__file__).parents[3] / "examples/tiny-hybrid.yaml"


def test_the_demo_is_the_default_fleet_beside_an_aggregate_engine() -> None:
    demo, example = (yaml.safe_load(path.read_text()) for path in (DEMO, EXAMPLE))
    assert demo.pop("roles") == {"aggregate": {"replicas": 1, "attn_tp": 1, "page_size": 16}}
    assert demo.pop("name") == "demo"
    assert example.pop("name") == "tiny-hybrid"
    assert example["router"].pop("port") == 30000
    assert demo == example


@pytest.mark.timeout(300)
def test_the_default_fleet_equals_the_aggregate_engine_heals_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a folder of which nothing may run: guards, engines and router inherit it."""
    here = HostileFolder(tmp_path / "downloaded")
    monkeypatch.chdir(here.path)
    loaded = load_fleet(DEMO)
    state = bring_up(loaded)
    try:
        by_role = {unit.role: unit for unit in state.units}
        prompts = make_prompts()[::5]
        expected = ask_all(by_role["aggregate"].url, prompts, 4)
        seen = compare(ask_all(by_role["router"].url, prompts, 4), expected)
        assert seen.ok
        assert seen.logprob_difference < 1e-9
        prefill = by_role["prefill"]
        assert _at_the_registry(prefill.host, prefill.ports["bootstrap"], None) == "PD4008"
        assert _at_the_registry(prefill.host, prefill.ports["bootstrap"], FleetFolder("demo").secret()) == ""
        _said_to_be_equal(state, loaded.fleet.model.served_name)
        assert request(f"{by_role['router'].url}/workers", body={"url": "http://127.0.0.1:9"})[0] == 401

        _restart_cuts_no_request(loaded, *(by_role[role].url for role in ("router", "aggregate", "decode")))
        decode = next(unit for unit in fleet_status("demo").units if unit.role == "decode")
        assert decode.pid is not None
        os.kill(decode.pid, signal.SIGKILL)
        until(lambda: _tokens(by_role["router"].url, prompts[0]) == expected[0].tokens, 60)
        assert next(unit for unit in fleet_status("demo").units if unit.role == "decode").restarts == 1
        processes = _processes()
        ports = {port for unit in state.units for port in unit.ports.values()}
    finally:
        bring_down("demo")
    assert here.ran == []
    assert processes
    assert _processes() == []
    listening = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
    assert not ports & listening


class Said(Silent):
    """What a bring-up says it does."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def progress(self, text: str) -> None:
        self.lines.append(text)


def _restart_cuts_no_request(loaded: LoadedFleet, router: str, alone: str, decode: str) -> None:
    """The router gives decode nothing more, and waits for what it is at; afterwards it serves through the new one."""
    before, said = {unit.name: unit.pid for unit in fleet_status("demo").units}, Said()
    request = ("a long one", 700, 120)
    with ThreadPoolExecutor(1) as pool:
        long = pool.submit(complete, router, loaded.fleet.model.served_name, *request)
        until(lambda: under_way(decode))
        restart(loaded, ["decode-0"], said)
        answer = long.result()
    assert "draining decode-0 (1)" in said.lines
    assert answer.tokens == complete(alone, loaded.fleet.model.served_name, *request).tokens
    after = {unit.name: unit.pid for unit in fleet_status("demo").units}
    assert {name for name in after if after[name] != before[name]} == {"decode-0"}
    assert fleet_status("demo").ok


def _said_to_be_equal(state: FleetState, model: str) -> None:
    """Because tokens and logprobs are, also as they come through the router."""
    note = next(phase.note for phase in state.phases if phase.name == "completion")
    assert note
    assert note.endswith("equal to aggregate-0's")
    urls = [unit.url for unit in state.units if unit.role in ("router", "aggregate")]
    found = difference(*(complete(url, model, "the quick brown fox", 12, 60) for url in urls))
    assert judge(found, NONE).kind == "equal"
    assert found.known
    assert len(found.shifts) == 12


def _tokens(url: str, prompt: list[int]) -> tuple[int, ...]:
    try:
        return ask(url, prompt).tokens
    except Unreachable:
        return ()


def _at_the_registry(host: str, port: int, secret: str | None) -> str:
    """With which code a client that has this secret is turned away; empty where it is not."""
    loop = Loop("test")
    try:
        routes = loop.ask(lambda: Routes(loop, (host, port), Options(secret=secret.encode() if secret else None)))
        until(lambda: not routes.cause or routes.code != "PD4001")
        loop.ask(routes.close)
        return str(routes.code) if routes.cause else ""
    finally:
        loop.stop()


def _processes() -> list[process.Process]:
    return [found for folder in FleetFolder("demo").units.iterdir() for found in process.marked(str(folder))]

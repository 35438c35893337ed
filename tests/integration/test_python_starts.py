"""A Python that pdctl starts runs nothing of the folder that its user stands in."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pdctl.engines import shipping
from pdctl.engines.base import Instance
from pdctl.engines.reference.adapter import ADAPTER as REFERENCE
from pdctl.engines.sglang.adapter import ADAPTER as SGLANG
from pdctl.engines.words import with_core
from pdctl.fleet import load_fleet
from pdctl.hosts.exec import SshHost
from pdctl.launch.base import Unit
from pdctl.launch.local import LocalLauncher
from pdctl.preflight.collect import read_facts, read_software
from pdctl.preflight.probe.agents import Agent, AgentError
from pdctl.preflight.wants import this_host
from pdctl.python import code, environment, fed, module, search_path
from pdctl.routers.kinds import ROUTERS
from pdctl.up.preflight import check_needs
from tests.hostile_folder import HostileFolder

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.integration


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostileFolder:
    folder = HostileFolder(tmp_path / "downloaded")
    monkeypatch.chdir(folder.path)
    monkeypatch.setenv("PYTHONPATH", "")
    return folder


def test_the_folder_catches_a_python_that_is_started_plainly(here: HostileFolder) -> None:
    subprocess.run([sys.executable, "-c", "import random"], check=True)
    assert here.ran == [str(here.path / "random.py")]


@pytest.mark.parametrize("spelling", [code(sys.executable, "import random, ctypes, pdctl"), fed(sys.executable)])
@pytest.mark.parametrize("path", ["", ":", f":{ROOT}", f"{ROOT}::"])
def test_an_empty_entry_of_the_path_is_not_the_current_folder(
    here: HostileFolder, spelling: tuple[str, ...], path: str
) -> None:
    env = environment(os.environ, {"PYTHONPATH": path})
    subprocess.run(spelling, input=b"import random, ctypes, pdctl", env=env, check=True)
    assert here.ran == []


def test_the_children_of_an_engine_inherit_it(here: HostileFolder) -> None:
    """Engines spawn their ranks with `multiprocessing`, which starts `python -c`, and helpers in ways of their own."""
    child = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import random, typing, socket'], check=True)"
    )
    spawn = "import multiprocessing as m; p = m.get_context('spawn').Process(target=print); p.start(); p.join()"
    for source in (child, spawn):
        subprocess.run(code(sys.executable, source), env=environment(os.environ), check=True)
    assert here.ran == []


def _another_python(folder: Path) -> str:
    """This interpreter under another name: it is then asked as an engine's own is, in a process of its own."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def _package(folder: Path) -> None:
    from pdctl.engines.base import Need

    assert check_needs([Need("package", "numpy", "", _another_python(folder))]) == 1


def _core(folder: Path) -> None:
    shipping.verify(sys.executable, shipping.install(), "sglang.srt.plugins")


def _facts(folder: Path) -> None:
    assert read_facts("").host.name


def _software(folder: Path) -> None:
    assert read_software("", sys.executable).executable == sys.executable


def _agent(folder: Path) -> None:
    agent = Agent(this_host("mooncake", "tcp", (), None), "127.0.0.1")
    with pytest.raises(AgentError, match="has no attribute 'dst'"):  # all is imported, and no fabric was opened
        agent.ask(30, do="prepare")
    agent.close()


def _parser(folder: Path) -> None:
    engine = replace(SGLANG, parser="import json, random, hashlib\nprint(len(json.load(sys.stdin)))")
    engine.validate([_instance("prefill")])


def _reference(folder: Path) -> None:
    command = REFERENCE.command(_instance("prefill"))
    subprocess.run([*command.argv, "--help"], env=environment(os.environ, command.env), check=True, capture_output=True)


def _routers(folder: Path) -> None:
    for kind in ROUTERS.values():
        subprocess.run([*kind.launch, "--help"], env=environment(os.environ), check=True, capture_output=True)


def _guarded(folder: Path) -> None:
    """The guard itself, and a unit that forgets -P: the variable still holds."""
    launcher = LocalLauncher(folder / "units")
    done = folder / "done"
    program = f"import random, ctypes, pathlib; pathlib.Path({str(done)!r}).touch()"
    launcher.start(Unit("router", "router", (sys.executable, "-c", program), backoff_s=()))
    try:
        while launcher.status("router").state not in ("failed", "stopped"):
            time.sleep(0.02)
    finally:
        launcher.stop(["router"])
    assert done.exists()


def _instance(role: str) -> Instance:
    loaded = load_fleet(ROOT / "examples/tiny-hybrid.yaml")
    pool = next(pool for pool in loaded.pools() if pool.role == role)
    ports = {"http": 1, "bootstrap": 2, "side_channel": 3}
    return Instance(f"{role}-0", pool, loaded.fleet, "builtin:tiny-hybrid", "127.0.0.1", ports)


STARTS = (_package, _core, _facts, _software, _agent, _parser, _reference, _routers, _guarded)


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.__name__.lstrip("_"))
def test_nothing_of_the_current_folder_is_run(
    here: HostileFolder, tmp_path: Path, start: Callable[[Path], None]
) -> None:
    start(tmp_path)
    assert here.ran == []


def test_a_python_on_another_host_is_told_the_same() -> None:
    line = SshHost("h1", ["ssh"]).argv(module("python3", "x"), environment())[-1]
    assert line == "env PYTHONSAFEPATH=1 python3 -P -m x"


def test_the_core_comes_first_and_the_current_folder_nowhere() -> None:
    pool = _instance("prefill").pool.model_copy(update={"env": {"PYTHONPATH": ":/x::/y:"}})
    assert with_core({}, pool)["PYTHONPATH"] == f"{shipping.core_file()}:/x:/y"
    assert search_path("", ":a:", "b") == "a:b"

"""The environments of the real engines, and that nothing of a test outlives it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engines import core_pools
from tests.engines.core_pools import Ways
from tests.engines.fleets import ROOT, Fleet
from tests.engines.shared import Shared


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """Both environments are built; said here, once, rather than by every test in its own way."""
    tool = [sys.executable, str(ROOT / "tools" / "engine_envs.py"), "sglang", "vllm", "--print-python"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[dict[str, Any]], Fleet]]:
    """Make a fleet from a document; whatever was made is taken down, and leaves no process."""
    fleets: list[Fleet] = []

    def make(document: dict[str, Any]) -> Fleet:
        for other in fleets:  # one fleet at a time: each engine is 1.5 GB and twenty seconds of CPU
            other.down()
        fleet = Fleet(tmp_path_factory.mktemp(str(document["name"])), document)
        fleets.append(fleet)
        return fleet

    yield make
    for fleet in fleets:
        fleet.down()
        assert survivors(fleet.path.parent) == []


@pytest.fixture(scope="module", autouse=True)
def room(request: pytest.FixtureRequest) -> None:
    """Engines that modules share make room for a module that does not use them."""
    if not request.module.__name__.rpartition(".")[2].startswith("test_core_"):
        Shared.stop_all()


@pytest.fixture(scope="session")
def sglang_dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """SGLang's pools of the dense model in float32; none runs before a test asks for it."""
    folder = tmp_path_factory.mktemp("sglang-core")
    model = core_pools.long_model(folder / "tiny-llama")
    with Shared(folder, core_pools.sglang(model, Ways(faults=folder / "faults"))) as shared:
        yield shared


@pytest.fixture(scope="session")
def sglang_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """The same with gated delta nets."""
    with Shared(tmp_path_factory.mktemp("sglang-core-hybrid"), core_pools.sglang_hybrid(Ways())) as shared:
        yield shared


@pytest.fixture(scope="session")
def vllm_dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """vLLM's pools of the dense model in float32."""
    folder = tmp_path_factory.mktemp("vllm-core")
    model = core_pools.long_model(folder / "tiny-llama")
    with Shared(folder, core_pools.vllm(model, Ways(faults=folder / "faults"))) as shared:
        yield shared


@pytest.fixture(scope="session")
def vllm_hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """Gated delta nets in bfloat16. Two ranks add in another order than one, so an engine of two is the yardstick."""
    stand = core_pools.vllm_hybrid(Ways())
    with Shared(tmp_path_factory.mktemp("vllm-core-hybrid"), stand, aggregate="aggregate-wide") as shared:
        yield shared


def survivors(folder: Path) -> list[str]:
    """Processes whose guard's record lies in this folder, or that were started with a fleet of it."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any(str(folder) in word for word in words):
            found.append(" ".join(words)[:200])
    return found

"""What is declared is imported, what is imported is declared, and an install brings what the README says it brings."""

import ast
import importlib.util
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = {"pdctl": "", "pdctl_transfer": "transfer", "pdctl_topology": "topology"}
#: Distributions by the module that they bring, where it has another name.
MODULES = {
    "pyyaml": {"yaml"},
    "pyzmq": {"zmq"},
    "pydantic": {"pydantic", "pydantic_core"},
    "prometheus-client": {"prometheus_client"},
    "pdctl-transfer": {"pdctl_transfer"},
    "pdctl-topology": {"pdctl_topology"},
}
#: Named in a string, for they are imported by name or started as a program.
BY_NAME = {"smg": "smg", "mooncake-transfer-engine-non-cuda": "mooncake.engine", "nixl-cu12": "nixl_cu12._api"}
BY_NAME["mooncake-transfer-engine"] = "mooncake.engine"
#: Imported only inside an engine that has them, or on hosts that do; never asked for.
FOUND_THERE = {"sglang", "vllm", "aiohttp", "pynvml", "pyverbs", "torch", "starlette"}


@cache
def project(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    return found


def name_of(requirement: str) -> str:
    return re.split(r"[<>=!~ ;\[(]", requirement)[0].lower().replace("_", "-")


def declared(folder: str) -> set[str]:
    extras = project(folder).get("optional-dependencies", {})
    return {name_of(one) for one in (*project(folder)["dependencies"], *(d for e in extras.values() for d in e))}


@cache
def imported(package: str) -> frozenset[str]:
    """The foreign modules that a package's sources import, wherever they do."""
    root = ROOT / PACKAGES[package] / package
    found: set[str] = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return frozenset(found - sys.stdlib_module_names - {package, "pdctl_probe_agent"})


def modules_of(name: str) -> set[str]:
    return MODULES.get(name, {name.replace("-", "_")})


@pytest.mark.parametrize("package", PACKAGES)
def test_every_declared_dependency_is_imported(package: str) -> None:
    sources = "".join(path.read_text() for path in (ROOT / PACKAGES[package] / package).rglob("*.py"))
    unused = [
        name
        for name in declared(PACKAGES[package])
        if not (modules_of(name) & imported(package) or (name in BY_NAME and f'"{BY_NAME[name]}' in sources))
    ]
    assert unused == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_import_is_declared(package: str) -> None:
    known = {module for name in declared(PACKAGES[package]) for module in modules_of(name)}
    allowed = FOUND_THERE if package != "pdctl" else set()
    assert imported(package) - known - allowed == set()


def closure(*roots: tuple[str, str | None]) -> dict[str, Distribution]:
    """The distributions, by what is installed here, that an install of these brings: (folder, extra)."""
    todo = [
        name_of(one)
        for folder, extra in roots
        for one in (project(folder)["optional-dependencies"][extra] if extra else project(folder)["dependencies"])
    ]
    found: dict[str, Distribution] = {}
    while todo:
        name = todo.pop()
        if name in found or name.startswith("pdctl-"):
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue
        wanted = (one for one in found[name].requires or () if "extra ==" not in one and "(extra" not in one)
        todo += [name_of(one) for one in wanted if not re.search(r"Windows|win32|emscripten|PyPy|pypy", one)]
    return found


PLAIN = (("", None), ("transfer", None), ("topology", None))
README = (*PLAIN, ("transfer", "cpu"), ("", "router"))


def test_the_installs_that_the_readme_gives_bring_neither_pytorch_nor_cuda() -> None:
    brought = closure(*README)
    assert {"smg", "mooncake-transfer-engine-non-cuda", "numpy"} <= set(brought)
    assert [name for name in brought if re.match(r"torch|nvidia|cuda|triton|nixl", name)] == []


def test_no_transfer_extra_asks_for_pytorch() -> None:
    for extra, wants in project("transfer")["optional-dependencies"].items():
        assert not any(name_of(one) == "torch" for one in wants), extra


def _megabytes(brought: dict[str, Distribution]) -> float:
    files = [Path(str(file.locate())) for one in brought.values() for file in one.files or ()]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file()) / (1 << 20)


def test_the_sizes_in_the_readme_are_those_of_what_is_installed() -> None:
    """As `du -sm` counts them: in whole blocks, byte code included. Other releases of the wheels differ by a tenth."""
    text = (ROOT / "README.md").read_text()
    said = [int(size) for size in re.findall(r"^pip install .*# (\d+) MB", text, re.MULTILINE)]
    assert len(said) == 2
    for megabytes, roots in zip(said, (PLAIN, README), strict=True):
        assert megabytes == pytest.approx(_megabytes(closure(*roots)), rel=0.15)


@pytest.mark.parametrize("folder", PACKAGES.values())
def test_every_package_carries_its_licence_and_a_readme(folder: str) -> None:
    assert project(folder)["license-files"] == ["LICENSE"]
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (ROOT / folder / project(folder)["readme"]).read_text().startswith("# ")


def _lock_tool() -> Any:
    spec = importlib.util.spec_from_file_location("lock", ROOT / "tools" / "lock.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_lock_holds_every_requirement_by_hash_and_names_no_host() -> None:
    tool = _lock_tool()
    lock = (ROOT / "requirements.lock").read_text()
    assert tool.missing(lock) == []
    assert tool.missing("") == tool.wanted()
    assert not re.search(r"://|^-", lock, re.MULTILINE)
    pins = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(pins) > 20
    assert [pin.partition(" ")[0] for pin in pins if "--hash=sha256:" not in pin] == []
    assert not re.search(r"^(torch|nvidia|nixl)", lock, re.MULTILINE)


def test_no_message_names_a_path_of_the_checkout() -> None:
    """Whoever installed a wheel has no examples/ and no tools/."""
    named = []
    for path in (*(ROOT / "pdctl").rglob("*.py"), ROOT / "pdctl/catalog/codes.toml"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"\bexamples/|\btests/", line.partition("  # ")[0]):
                named.append(f"{path.relative_to(ROOT)}:{number}")
    assert named == []

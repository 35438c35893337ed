"""The three distributions are released together: versions and pins must agree."""

import re
import tomllib
from pathlib import Path

import pdctl
import pdctl_topology
import pdctl_transfer

ROOT = Path(__file__).parents[3]


def test_the_three_versions_are_one() -> None:
    assert pdctl.__version__ == pdctl_transfer.__version__ == pdctl_topology.__version__


def test_pdctl_pins_exactly_its_own_cores() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = [*project["dependencies"], *(d for extra in project["optional-dependencies"].values() for d in extra)]
    pins = [d for d in listed if d.startswith(("pdctl-transfer", "pdctl-topology"))]
    assert len(pins) >= 2
    assert {p.partition("==")[2] for p in pins} == {pdctl.__version__}


def test_no_extra_holds_two_mooncake_flavours() -> None:
    """A second flavour silently overwrites the files of the first."""
    project = tomllib.loads((ROOT / "transfer/pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, wants in project["optional-dependencies"].items():
        assert sum(w.startswith("mooncake-transfer-engine") for w in wants) <= 1, extra


def test_every_dependency_has_an_upper_bound_or_is_exact() -> None:
    loose = []
    for file in ("pyproject.toml", "transfer/pyproject.toml", "topology/pyproject.toml"):
        project = tomllib.loads((ROOT / file).read_text(encoding="utf-8"))["project"]
        loose += [d for d in project["dependencies"] if not re.search(r"<|==", d)]
    assert loose == []


def test_ci_runs_the_command_that_the_readme_gives() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- ci:test -->\n```[a-z]*\n(.*?)```", readme, re.DOTALL)
    assert block is not None
    assert [line for line in block[1].splitlines() if line.startswith("make ")] == ["make test"]

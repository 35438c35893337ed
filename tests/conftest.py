"""Held for every test: in CI a skip that is not listed with its reason fails, and state stays in the test's folder."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.hostile import MODES, hostile

ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.toml")


def _refuse_unlisted_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """With CI=true turns a skip into a failure, unless `allowed_skips.toml` lists the node with a reason."""
    if not report.skipped or hasattr(report, "wasxfail") or os.environ.get("CI") != "true":
        return
    allowed = tomllib.loads(ALLOWED_SKIPS.read_text(encoding="utf-8"))
    if not allowed.get(report.nodeid.partition("[")[0]):
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped in CI and {ALLOWED_SKIPS.name} does not list it: {report.longrepr}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):  # type: ignore[no-untyped-def]
    """Judges skips of tests and fixtures."""
    report = yield
    _refuse_unlisted_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):  # type: ignore[no-untyped-def]
    """Judges skips of whole modules."""
    report = yield
    _refuse_unlisted_skip(report)
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker that is gone says nothing more: how its process ended is told here (-11: by a fault, -9: somebody killed
    it, 1: it left by itself)."""
    popen = getattr(getattr(node.gateway, "_io", None), "popen", None)
    if error and popen is not None:
        with suppress(subprocess.TimeoutExpired):
            popen.wait(5)
        sys.stderr.write(f"\n{node.gateway.id}: its process ended with {popen.poll()}\n")


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the state of the person who runs it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))


@pytest.fixture(autouse=True)
def _fabric_settings_end_with_the_test() -> Iterator[None]:
    """A fabric's settings are the process's, and its children's: none may reach another test."""
    before = {name: value for name, value in os.environ.items() if name.startswith(("MC_", "UCX_"))}
    yield
    for name in [name for name in os.environ if name.startswith(("MC_", "UCX_"))]:
        del os.environ[name]
    os.environ.update(before)


def _kept(number: int) -> tuple[int, int] | None:
    """What a descriptor is, by device and inode; None where it is closed."""
    try:
        about = os.fstat(number)
    except OSError:
        return None
    return about.st_dev, about.st_ino


_AT_FIRST = {number: kept for number in range(3, 64) if (kept := _kept(number)) is not None}
"""The runner's own: its pipes to the other processes, where it reports a crash."""


@pytest.fixture(autouse=True)
def _the_runners_descriptors_stay() -> Iterator[None]:
    """A number closed twice is somebody else's by then: a worker whose pipe goes that way is gone without a word."""
    yield
    lost = [number for number, kept in _AT_FIRST.items() if _kept(number) != kept]
    for number in lost:
        del _AT_FIRST[number]
    assert not lost, f"descriptors that the runner had open were closed: {lost}"


@pytest.fixture
def hostiles() -> Iterator[dict[str, int]]:
    """The port of a server for each harm that one can do."""
    with ExitStack() as stack:
        yield {mode: stack.enter_context(hostile(mode)) for mode in MODES}

"""The faults that tests of real engines ask for are had by the core: else those tests would hold nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engines.core_pools import FOLDER, INSIDE
from tests.integration.transfer.faulty_pair import SLOW_S

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
FAULTS = ("none", "flip", "gather", "sums", "slow", "send", "ask", "none")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of each, one after the other in one pair of peers."""
    folder = tmp_path_factory.mktemp("faults")
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(INSIDE), str(ROOT))), FOLDER: str(folder)}
    words = [sys.executable, "-m", "tests.integration.transfer.faulty_pair", str(folder), *FAULTS]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_byte_that_changes_fails_the_checksum(said: list[dict[str, Any]]) -> None:
    assert (said[1]["taken"], said[1]["codes"]) == (True, ["PD4040"])


def test_a_defect_in_a_worker_fails_the_request_on_both_sides(said: list[dict[str, Any]]) -> None:
    for found in said[2:4]:
        assert (found["taken"], found["codes"], found["ends"]) == (True, ["PD4042"], ["failed"] * 3)


def test_a_write_takes_longer(said: list[dict[str, Any]]) -> None:
    assert said[4]["ends"] == ["confirmed"] * 3
    assert said[4]["seconds"] > SLOW_S


def test_what_the_engine_calls_raises(said: list[dict[str, Any]]) -> None:
    assert [found["raised"] for found in said[5:7]] == ["Defect", "Defect"]


@pytest.mark.code("PD3140")
def test_decode_hears_at_once_of_a_room_that_prefill_could_not_open(said: list[dict[str, Any]]) -> None:
    """It would wait `bootstrap_s`, a minute, for a room that never opens."""
    assert (said[5]["codes"], said[5]["ends"]) == (["PD3140"], ["failed"] * 2)
    assert said[5]["seconds"] < 10


def test_prefill_hears_at_once_of_a_room_that_decode_could_not_ask_for(said: list[dict[str, Any]]) -> None:
    """And so does the rank of decode that could: prefill fails the room for all."""
    assert (said[6]["codes"], said[6]["ends"]) == (["PD3140"], ["failed"] * 2)
    assert said[6]["seconds"] < 10


def test_without_a_fault_all_is_well_before_and_after(said: list[dict[str, Any]]) -> None:
    assert [found["ends"] for found in (said[0], said[-1])] == [["confirmed"] * 3] * 2

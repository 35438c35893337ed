"""vLLM with the core inside, on CPU: bytes changed on the way, sides that die or freeze, defects, clients gone."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from pdctl.engines.alike import NONE
from tests.engines import core_pairs
from tests.engines.core_pairs import TOKENS
from tests.engines.fleets import until
from tests.engines.mishaps import Load, asked, at_rest, size_of, slow_writes
from tests.engines.shared import Shared

pytestmark = pytest.mark.engines
PAIR = ("p1", "d2")
OTHER_DECODE, OTHER_PREFILL = "d1", "p2"
ANSWERED_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def engines(vllm_dense: Shared) -> Shared:
    """TP 1 → 2 by the core, and others of which a test may need one."""
    return vllm_dense


@pytest.fixture(scope="module")
def faults(engines: Shared) -> Path:
    """Where faults are asked for."""
    return engines.folder / "faults"


def right(engines: Shared, prefill: str = PAIR[0], decode: str = PAIR[1]) -> None:
    """The pair brings the aggregate engine's tokens."""
    assert engines.unlike((prefill, decode), core_pairs.few(), NONE, TOKENS, 4) == []


def failure(engines: Shared, length: int = 300) -> str:
    """What the client hears of a request over the pair that must fail, within a minute."""
    began = time.monotonic()
    (answer,) = engines.over(*PAIR, [core_pairs.fresh(length)], TOKENS, 1)
    assert isinstance(answer, str), answer
    assert time.monotonic() - began < ANSWERED_WITHIN_S
    return answer


def test_a_byte_that_changes_on_its_way_is_an_error_at_the_client(engines: Shared, faults: Path) -> None:
    right(engines)
    flip = asked(faults, "flip")
    assert "HTTP 500" in failure(engines)
    assert not flip.exists()
    assert "PD4040" in engines.log(PAIR[1])
    right(engines)


@pytest.mark.parametrize("where", ["sums", "send", "ask"])
def test_a_defect_in_the_core_fails_one_request_with_a_code(engines: Shared, faults: Path, where: str) -> None:
    """Nothing is gathered here: a head's tokens lie together in vLLM's blocks, and are written as they are."""
    right(engines)
    before = [process.pid for name in PAIR for process in engines.processes(name)]
    seen = [len(engines.log(name)) for name in PAIR]
    defect = asked(faults, where)
    assert "HTTP 500" in failure(engines)
    assert not defect.exists(), "no process came there"
    assert any("PD" in engines.log(name)[start:] for name, start in zip(PAIR, seen, strict=True))
    right(engines)
    assert all(psutil.pid_exists(pid) for pid in before)


@pytest.mark.full
@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_decode_gone_in_mid_transfer_leaves_prefill_serving_others(
    engines: Shared, faults: Path, which: signal.Signals
) -> None:
    right(engines)
    right(engines, PAIR[0], OTHER_DECODE)
    with slow_writes(faults) as began, ThreadPoolExecutor(1) as client:
        answer = client.submit(engines.over, *PAIR, [core_pairs.fresh(300)], TOKENS, 1)
        until("bytes are on their way", began.exists, 60)
        engines.signal(PAIR[1], which)
    right(engines, PAIR[0], OTHER_DECODE)
    if which == signal.SIGKILL:
        assert isinstance(answer.result(ANSWERED_WITHIN_S)[0], str)
        engines.stop(PAIR[1])
    else:
        time.sleep(15)  # longer than a peer may be silent
        engines.signal(PAIR[1], signal.SIGCONT)
        assert isinstance(answer.result(ANSWERED_WITHIN_S)[0], str)
    right(engines)
    at_rest(engines, PAIR[0], PAIR[1], OTHER_DECODE)


@pytest.mark.full
@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_prefill_gone_in_mid_transfer_is_an_error_at_the_client(
    engines: Shared, faults: Path, which: signal.Signals
) -> None:
    right(engines)
    right(engines, OTHER_PREFILL, PAIR[1])
    with slow_writes(faults) as began, ThreadPoolExecutor(1) as client:
        answer = client.submit(engines.over, *PAIR, [core_pairs.fresh(300)], TOKENS, 1)
        until("bytes are on their way", began.exists, 60)
        engines.signal(PAIR[0], which)
        assert isinstance(answer.result(ANSWERED_WITHIN_S)[0], str)
    right(engines, OTHER_PREFILL, PAIR[1])
    if which == signal.SIGKILL:
        engines.stop(PAIR[0])
    else:
        engines.signal(PAIR[0], signal.SIGCONT)
    right(engines)
    at_rest(engines, PAIR[0], PAIR[1], OTHER_PREFILL)


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_clients_that_go_for_ten_minutes_leave_nothing_behind(engines: Shared) -> None:
    right(engines)
    Load(engines, PAIR).run(10)  # threads start, caches fill
    at_rest(engines, *PAIR)
    before = {name: size_of(engines, name) for name in PAIR}
    load = Load(engines, PAIR)
    load.run(float(os.environ.get("TEST_ABORT_SECONDS", "600")))
    assert load.failed == []
    assert load.done > load.left > 0
    at_rest(engines, *PAIR)
    for name in PAIR:
        assert size_of(engines, name).within(before[name]), (name, before[name], size_of(engines, name))
    right(engines)

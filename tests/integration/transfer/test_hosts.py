"""The core lives in somebody else's process: its threads, signal handlers, forks and event loops are not ours."""

import asyncio
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pdctl_transfer.session.bytes import area
from pdctl_transfer.session.drive import pulse
from tests.unit.transfer_session.world import FAST, World, manifest

pytestmark = pytest.mark.integration
CHILD_S = 60


def carry() -> None:
    """Staged, so that areas are shared as well."""
    with World(manifest("prefill", 2), manifest("decode", 1), FAST) as world:
        move(world)


def move(world: World) -> None:
    senders, receivers, wrong = world.transfer()
    assert {handle.wait(20) for handle in [*receivers, *senders]} == {"confirmed"}
    assert wrong() == []


@contextmanager
def held(*locks: threading.Lock) -> Iterator[None]:
    """Another thread has these."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        taken.set()
        over.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    yield
    over.set()
    thread.join()


def in_a_fork(work: Callable[[], None]) -> int:
    """Exit status of a child that is this process, with none of its threads."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_S)  # ends it where it hangs
        try:
            work()
        except BaseException:  # noqa: BLE001  whatever it is, the child must not go on as pytest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_thread_that_is_not_the_main_one_is_as_good() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            carry()
        except BaseException as error:  # noqa: BLE001  raised by the test
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert not failed, failed[0]
    assert not thread.is_alive()


def test_the_host_s_signal_handlers_stay_as_they_are() -> None:
    """Fails if a loop takes SIGINT or SIGTERM, or the descriptor by which Python tells of signals."""

    def mine(*_: object) -> None: ...

    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGPIPE)
    old = {one: signal.signal(one, mine) for one in ours}
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        all_of = {one: signal.getsignal(one) for one in signal.valid_signals()}
        carry()
        assert {one: signal.getsignal(one) for one in signal.valid_signals()} == all_of
        assert signal.set_wakeup_fd(writing) == writing
    finally:
        signal.set_wakeup_fd(before)
        for one, handler in old.items():
            signal.signal(one, handler)
        os.close(reading)
        os.close(writing)


def test_a_child_forked_beside_a_working_core_has_a_core_of_its_own() -> None:
    """While other threads hold the core's locks, which are never given back in the child. The parent's goes on."""
    with World(manifest("prefill", 2), manifest("decode", 1), FAST) as world:
        move(world)
        with held(area._sharing, pulse._lock):
            assert in_a_fork(carry) == 0
        move(world)


def forked_pulse() -> None:
    assert not pulse._pulses, "the parent's pulse beats on in its child"
    assert pulse.pulse("127.0.0.1")


def test_a_child_s_pulse_is_not_its_parent_s() -> None:
    """Fails if a parent that was killed is taken to live on, because its child keeps the port open."""
    port = pulse.pulse("127.0.0.1")
    assert in_a_fork(forked_pulse) == 0
    assert pulse.pulse("127.0.0.1") == port
    assert pulse.knock("127.0.0.1", port) is True


@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_a_child_of_multiprocessing_works(how: str) -> None:
    context: Any = mp.get_context(how)
    child = context.Process(target=carry)
    child.start()
    child.join(CHILD_S)
    if child.is_alive():
        child.kill()
    child.join()
    assert child.exitcode == 0


class Odd(asyncio.SelectorEventLoop):
    """A loop whose transports are none of asyncio's, as uvloop's are."""

    def create_server(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the host's own loop was used")

    create_connection = create_server


class OddPolicy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Odd


def test_a_loop_that_runs_in_the_host_is_neither_used_nor_disturbed() -> None:
    """The engine's main thread runs a loop under a policy of its own while the core works in it."""

    async def serving() -> int:
        ticks = 0
        work = asyncio.get_running_loop().run_in_executor(None, carry)
        while not work.done():
            ticks += 1
            await asyncio.sleep(0.005)
        await work
        return ticks

    old = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(OddPolicy())
    try:
        assert asyncio.run(serving()) > 1
    finally:
        asyncio.set_event_loop_policy(old)

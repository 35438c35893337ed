"""Calls in parallel: order, the first fault, and that an interrupt is never waited out."""

import subprocess
import sys
import threading
import time

import pytest

from pdctl.up.parallel import each


def test_results_come_in_the_order_of_the_items() -> None:
    assert each(lambda n: n * n, range(50), workers=8) == [n * n for n in range(50)]
    assert each(str, []) == []


def test_the_first_fault_ends_the_wait_for_the_others() -> None:
    stuck = threading.Event()

    def call(item: int) -> None:
        if item == 1:
            raise ValueError("one")
        stuck.wait(30)

    began = time.monotonic()
    with pytest.raises(ValueError, match="one"):
        each(call, [0, 1])
    assert time.monotonic() - began < 10
    stuck.set()


def test_who_waits_may_look_around_and_leave_meanwhile() -> None:
    stuck = threading.Event()

    def meanwhile() -> None:
        raise ValueError("another one is gone")

    with pytest.raises(ValueError, match="another one is gone"):
        each(lambda item: stuck.wait(60), [0, 1], meanwhile=meanwhile)
    stuck.set()


def test_an_interrupt_that_python_notes_while_the_main_thread_blocks_is_not_lost() -> None:
    """As with a signal that arrives just before the main thread blocks: nothing wakes it."""
    script = (
        "import _thread, threading, time\n"
        "from pdctl.up.parallel import each\n"
        "stuck = threading.Event()\n"
        "def call(n):\n"
        "    _thread.interrupt_main()\n"
        "    stuck.wait(60)\n"
        "try:\n"
        "    each(call, [1])\n"
        "except KeyboardInterrupt:\n"
        "    stuck.set()\n"
        "    print('interrupted')\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert ran.stdout == "interrupted\n"

"""Signals during a bring-up: they end it, unless whoever started it had them ignored."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from pdctl.up.signals import interruptible, undisturbed


@pytest.fixture(params=[signal.SIGHUP, signal.SIGTERM])
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    before = signal.getsignal(request.param)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("context", [interruptible, undisturbed])
def test_what_the_caller_ignores_stays_ignored(
    number: signal.Signals, context: Callable[[], AbstractContextManager[None]]
) -> None:
    """`nohup pdctl up`: the terminal goes, the bring-up goes on."""
    signal.signal(number, signal.SIG_IGN)
    with context():
        os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
    assert signal.getsignal(number) is signal.SIG_IGN


def test_else_it_ends_the_bring_up_and_cannot_cut_the_take_down_short(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_DFL)
    with interruptible():
        with undisturbed():
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL

"""What Ctrl-C and termination signals do to a bring-up and to a take-down."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a bring-up as Ctrl-C does. One that the caller ignores, as `nohup` does, stays ignored."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    with _handling(interrupt, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing may cut a take-down short: half of it is worse than a moment's wait."""

    def ignore(number: int, frame: object) -> None:
        return None

    with _handling(ignore, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _handling(handler: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)

"""The wall between a plugin and the engine it lives in: nothing that fails here may fail there."""

import functools
import logging
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

log = logging.getLogger("pdctl")

OFF = ("off", "0", "false", "no")
"""What PDCTL_PLUGIN says to turn a plugin off."""

P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")


def enabled() -> bool:
    """False when the operator said PDCTL_PLUGIN=off."""
    return os.environ.get("PDCTL_PLUGIN", "on").strip().lower() not in OFF


def guarded(default: D) -> Callable[[Callable[P, R]], Callable[P, R | D]]:
    """Wrap a function of ours that the engine runs: a failure is logged once with its trace, and `default` returned."""

    def decorate(function: Callable[P, R]) -> Callable[P, R | D]:
        seen: set[str] = set()

        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R | D:
            try:
                return function(*args, **kwargs)
            except Exception as failure:  # the outermost edge: the engine must live
                what = f"{type(failure).__name__}: {failure}"
                if what not in seen and len(seen) < 32:
                    seen.add(what)
                    log.warning(
                        "pdctl plugin: %s failed; the engine goes on without it", function.__name__, exc_info=True
                    )
                return default

        return run

    return decorate

"""Lets idle threads rest in the test environment: on two cores, those that spin leave nothing to the one that works.

1. NIXL's Python wrapper asks for a progress thread without any delay: each engine burns a core from its start on. Here
   the thread sleeps up to a millisecond; a peer's message still wakes it.
2. An engine's core and its worker wait for each other by `sched_yield`, a second long after each message, and a decode
   engine that waits for a transfer sends messages all the time. Two such engines kept a third from answering for a
   minute. Here they sleep.
"""

import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_DELAY_US = 1000
_PAUSE_S = 0.0005


def _rest_between_polls(module: ModuleType) -> None:
    known = module.nixlBind.nixlAgentConfig
    delay = known.pthrDelay

    class Config(known):  # type: ignore[misc, valid-type]
        pthrDelay = property(delay.fget, lambda self, _: delay.fset(self, _DELAY_US))  # noqa: N815 - NIXL's name

    module.nixlBind.nixlAgentConfig = Config


def _sleep_for_yield(module: ModuleType) -> None:
    module.sched_yield = lambda: time.sleep(_PAUSE_S)  # type: ignore[attr-defined]


_AFTER_IMPORT: dict[str, Callable[[ModuleType], None]] = {
    "nixl_cu12._api": _rest_between_polls,
    "vllm.distributed.utils": _sleep_for_yield,
}


class _Hook(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        after = _AFTER_IMPORT.get(name)
        spec = PathFinder.find_spec(name, path, target) if after else None
        if spec is None or spec.loader is None or after is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            after(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Hook())

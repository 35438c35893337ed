"""Lets an idle NIXL agent rest in the test environment.

NIXL's Python wrapper asks for a progress thread without any delay: each engine burns a core from its start on, and two
of them leave nothing of a small machine. Here the thread sleeps up to a millisecond; a peer's message still wakes it.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_MODULE = "nixl_cu12._api"
_DELAY_US = 1000


def _rest(module: ModuleType) -> None:
    known = module.nixlBind.nixlAgentConfig
    delay = known.pthrDelay

    class Config(known):  # type: ignore[misc, valid-type]
        pthrDelay = property(delay.fget, lambda self, _: delay.fset(self, _DELAY_US))  # noqa: N815 - NIXL's name

    module.nixlBind.nixlAgentConfig = Config


class _Hook(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == _MODULE else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            _rest(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Hook())

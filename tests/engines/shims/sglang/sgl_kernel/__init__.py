"""Stand-in for SGLang's compiled kernels (CUDA and AMX builds only), so that SGLang imports on any CPU.

Every name and submodule exists; calling one raises, so nothing is silently computed wrong. A dense model with the
torch-native attention backend calls none.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__version__ = "0.4.10"


class _Missing:
    """A name of the kernels: can be passed about and asked for attributes, not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = _stand_in(f"{self._name}.{attribute}")
        self.__dict__[attribute] = value
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{self._name} is a compiled kernel that this CPU environment does not have")


class _Module(ModuleType):
    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        value = _stand_in(f"{self.__name__}.{attribute}")
        setattr(self, attribute, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _stand_in(name: str) -> Any:
    """A class for a capitalised name (it may be a base class or an annotation), else an object that refuses calls."""
    last = name.rsplit(".", 1)[-1]
    return type(last, (), {}) if last[:1].isupper() else _Missing(name)


def __getattr__(attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    value = _stand_in(f"sgl_kernel.{attribute}")
    globals()[attribute] = value
    return value


sys.meta_path.append(_Finder())

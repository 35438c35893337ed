"""Loaded by Python itself in every process of an engine under test, as its folder stands on PYTHONPATH.

Changes modules once they have been imported: faults and times that tests ask for, and what SGLang lacks on a CPU for
recurrent models.
"""

import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import gdn_on_cpu

TABLES = [gdn_on_cpu.AFTER_IMPORT]
if os.environ.get("TEST_FAULTS"):
    import faults_of_tests

    TABLES.append(faults_of_tests.AFTER_IMPORT)
if os.environ.get("TEST_TIMES"):
    import timed_transfers

    TABLES.append(timed_transfers.AFTER_IMPORT)
NAMES = {name for table in TABLES for name in table}


def changed(module: ModuleType) -> None:
    """What all of them do to a module."""
    for table in TABLES:
        if module.__name__ in table:
            table[module.__name__](module)


class Changing(Loader):
    """The loader of a module, and what is done to it then. In a wheel one loader is that of all modules of a folder."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        changed(module)


class Hook(MetaPathFinder):
    """Finds the modules that are changed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in NAMES else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = Changing(spec.loader)
        return spec


sys.meta_path.insert(0, Hook())

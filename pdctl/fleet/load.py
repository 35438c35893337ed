"""From a path to a fleet that can be used."""

import sys
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from pydantic import ValidationError

from pdctl.errors import FleetFileError
from pdctl.fleet.faults import as_written, fault_of
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Fleet
from pdctl.fleet.rules import judge
from pdctl.fleet.source import Document, parse, read


def load_fleet(path: Path | str) -> LoadedFleet:
    """Read and judge a fleet file. Raises FleetFileError with file, line, key, found and expected."""
    path = Path(path)
    return parse_fleet(read(path), path)


def parse_fleet(content: bytes, path: Path) -> LoadedFleet:
    """`load_fleet` for bytes already read; `path` is what messages call them."""
    document = parse(content, str(path))
    if not isinstance(document.data, Mapping):
        raise FleetFileError("the file holds no mapping", where=document.where(()), code="PD0004", hint=_BEGIN)
    _build_model()
    try:
        fleet = Fleet.model_validate(document.data)
    except ValidationError as error:
        raise fault_of(error, document) from None
    _locate(fleet, document)
    loaded = LoadedFleet(path, "sha256:" + sha256(content).hexdigest(), fleet, document)
    judge(loaded)
    return loaded


class _NoPlugins(ModuleType):
    """In the place of the module that looks for plugins of pydantic: there are none.

    Whatever is installed beside pdctl would run in every command, and looking for it costs a tenth of a check. If
    another release of pydantic has no such module, this one is never asked.
    """

    @staticmethod
    def get_plugins() -> tuple[()]:
        return ()


def _build_model() -> None:
    """Let pydantic build the model's validator, which it does once, with nobody's plugins."""
    sys.modules.setdefault(_PLUGIN_LOADER, _NoPlugins(_PLUGIN_LOADER))
    Fleet.model_rebuild()


def _locate(fleet: Fleet, document: Document) -> None:
    """Tell each pool its key as the file writes it."""
    groups = [("prefill",), ("decode",), *(("roles", role) for role in fleet.roles)]
    for group in groups:
        for index, pool in enumerate(fleet.pools(group[-1])):
            pool._key = ".".join(map(str, as_written((*group, index), document.data)))


_PLUGIN_LOADER = "pydantic.plugin._loader"
_BEGIN = "a fleet file begins with `schema: pdctl.fleet/v1`"

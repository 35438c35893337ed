"""From a path to a fleet that can be used, every value with its origin."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from pdctl import __version__
from pdctl.errors import FleetFileError
from pdctl.fleet.faults import as_written, fault_of
from pdctl.fleet.model import Fleet, Pool
from pdctl.fleet.source import Document, Key, parse, read

DEFAULT = f"default of pdctl {__version__}"


@dataclass(frozen=True)
class LoadedFleet:
    """A valid fleet file: the model, and where each value comes from."""

    path: Path
    digest: str
    fleet: Fleet
    _document: Document

    def source(self, key: str) -> str:
        """Where the value of a dotted key comes from: `fleet.yaml:12`, or the default of which version.

        A role's only pool may be addressed with or without its index: `prefill.page_size`, `prefill.0.page_size`.
        """
        parts: Key = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        written = as_written(parts, self._document.data)
        return self._document.where(written) if written in self._document.lines else DEFAULT

    def where(self, key: str) -> str:
        """`file:line` of a dotted key, or of what stands around it if the key is not in the file."""
        parts: Key = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        return self._document.where(as_written(parts, self._document.data))

    def pools(self, role: str | None = None) -> tuple[Pool, ...]:
        """The pools of a role in the file's order; of all roles for None."""
        return self.fleet.pools(role)

    @property
    def model_path(self) -> str:
        """The model's path; a relative one that exists beside the fleet file is taken from there."""
        path = self.fleet.model.path
        beside = self.path.parent / path
        return str(beside) if beside.exists() and not path.startswith("builtin:") else path


def load_fleet(path: Path | str) -> LoadedFleet:
    """Read and judge a fleet file. Raises FleetFileError with file, line, key, found and expected."""
    path = Path(path)
    return parse_fleet(read(path), path)


def parse_fleet(content: bytes, path: Path) -> LoadedFleet:
    """`load_fleet` for bytes already read; `path` is what messages call them."""
    from pdctl.fleet.rules import judge

    document = parse(content, str(path))
    if not isinstance(document.data, Mapping):
        raise FleetFileError("the file holds no mapping", where=document.where(()), code="PD0004", hint=_BEGIN)
    try:
        fleet = Fleet.model_validate(document.data)
    except ValidationError as error:
        raise fault_of(error, document) from None
    _locate(fleet, document)
    loaded = LoadedFleet(path, "sha256:" + sha256(content).hexdigest(), fleet, document)
    judge(loaded)
    return loaded


def _locate(fleet: Fleet, document: Document) -> None:
    """Tell each pool its key as the file writes it."""
    groups = [("prefill",), ("decode",), *(("roles", role) for role in fleet.roles)]
    for group in groups:
        for index, pool in enumerate(fleet.pools(group[-1])):
            pool._key = ".".join(map(str, as_written((*group, index), document.data)))


_BEGIN = "a fleet file begins with `schema: pdctl.fleet/v1`"

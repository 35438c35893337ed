"""A fleet that can be used, every value with its origin."""

from pathlib import Path

from msgspec import Struct

from pdctl import __version__
from pdctl.fleet.faults import as_written
from pdctl.fleet.model import Fleet, Pool
from pdctl.fleet.source import Document, Key
from pdctl.inputs import is_file, is_folder

DEFAULT = f"default of pdctl {__version__}"


class LoadedFleet(Struct, frozen=True):
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

    def __contains__(self, key: str) -> bool:
        """Whether the file writes a dotted key itself, rather than leaving it to its default."""
        parts: Key = tuple(int(part) if part.isdigit() else part for part in key.split("."))
        return as_written(parts, self._document.data) in self._document.lines

    def as_key(self, parts: Key) -> str:
        """A location in the model as the dotted key that the file writes."""
        return ".".join(map(str, as_written(parts, self._document.data)))

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
        return path if path.startswith("builtin:") else self._beside(path)

    @property
    def draft_path(self) -> str | None:
        """The folder with the draft model's config, found as the model's is; None where none is handed in."""
        path = self.fleet.model.draft
        return self._beside(path) if path else None

    def _beside(self, path: str) -> str:
        beside = self.path.parent / path
        return str(beside) if is_folder(beside) or is_file(beside) else path

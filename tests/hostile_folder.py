"""A folder to stand in whose files nobody may run: each writes its own name down as soon as it is imported."""

from pathlib import Path

#: Modules that every Python of ours imports sooner or later, and those that Python imports by itself.
MODULES = (
    *("sitecustomize", "usercustomize", "ctypes", "hashlib", "random", "json", "typing", "runpy", "struct", "socket"),
    *("pdctl", "pdctl_transfer", "pdctl_topology", "numpy", "msgspec", "importlib_metadata", "smg"),
)


class HostileFolder:
    """Its path, and what was run of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._log = path.parent / f"{path.name}.ran"
        path.mkdir()
        trap = f"open({str(self._log)!r}, 'a').write(__file__ + '\\n')\n"
        for name in MODULES:
            (path / f"{name}.py").write_text(trap)
        for name in ("pdctl", "pdctl_transfer"):
            (path / name).mkdir()
            (path / name / "__init__.py").write_text(trap)
            (path / name / "__main__.py").write_text(trap)

    @property
    def ran(self) -> list[str]:
        """Files of the folder that some Python has executed."""
        return self._log.read_text().splitlines() if self._log.exists() else []

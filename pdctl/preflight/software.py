"""Writes down what an engine's own Python would load: packages, their origin, and shared libraries that are missing.

It is sent to that interpreter on standard input and imports neither torch nor Mooncake: it reads metadata and ELF
headers. So it stands alone: standard library only, Python 3.8 and later.
"""

# ruff: noqa: PTH123 (plain open: it runs on whatever Python an engine has)

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "mooncake",
    "nixl",
    "torch",
    "sglang",
    "vllm",
    "smg",
    "sgl-router",
    "lmcache",
    "pdctl",
    "nvidia-cuda-runtime",
)
"""Name prefixes of the distributions that are noted."""
LIBRARY_FOLDERS = ("mooncake", "nixl_cu12", "nixl_cu13")
MODULE = re.compile(r"libuct_([a-z0-9_]+)\.so")
"""A transport module of UCX: `libuct_ib_mlx5.so.0.0.0` → `ib_mlx5`."""
PROVIDERS = re.compile(rb"(/[\w./-]+)/lib%s-rdmav(\d+)\.so")
"""Where a libibverbs looks for the library of a device's driver, as it is compiled in."""
LINKED_PROVIDERS = ("mlx5", "efa")
"""Providers that UCX's own modules link, so that they need not be found."""
DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29


def distributions() -> list[dict[str, Any]]:
    """Name, version, installer and origin of each package that transfers stand on."""
    found: dict[str, dict[str, Any]] = {}
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name.startswith(PACKAGES):
            direct = json.loads(dist.read_text("direct_url.json") or "{}")
            found.setdefault(name, {"name": name, "version": dist.version, "source": direct.get("url") or "index"})
    return sorted(found.values(), key=lambda item: str(item["name"]))


def torch_cuda() -> str | None:
    """The CUDA release that torch was built for, by its version file; empty for a CPU build, None without torch."""
    for folder in sys.path:
        path = Path(folder or ".") / "torch" / "version.py"
        if path.is_file():
            match = re.search(r"^cuda\s*(?::[^=]*)?=\s*(?:'([^']*)'|None)", path.read_text("utf-8"), re.MULTILINE)
            return (match.group(1) or "") if match else None
    return None


def dynamic(path: Path) -> tuple[list[str], list[str]]:
    """DT_NEEDED sonames and run paths of a 64-bit little-endian ELF file; nothing of any other file."""
    with open(path, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01":
            return [], []
        offset, (size, count) = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        raw = file.read(size * count)
        segments = [struct.unpack_from("<IIQQQQQQ", raw, size * i) for i in range(count)]
        tags: list[tuple[int, int]] = []
        for segment in segments:
            if segment[0] == 2:
                file.seek(segment[2])
                data = file.read(segment[5])
                tags = [struct.unpack_from("<qQ", data, i) for i in range(0, len(data) - 15, 16)]
        table = next((value for tag, value in tags if tag == DT_STRTAB), None)
        if table is None:
            return [], []
        start = next((s[2] + table - s[3] for s in segments if s[0] == 1 and s[3] <= table < s[3] + s[5]), table)

        def text(at: int) -> str:
            file.seek(start + at)
            return file.read(4096).split(b"\0", 1)[0].decode("utf-8", "replace")

        needed = [text(value) for tag, value in tags if tag == DT_NEEDED]
        paths = [text(value) for tag, value in tags if tag in (DT_RPATH, DT_RUNPATH)]
    return needed, [part for line in paths for part in line.split(":") if part]


def loadable(soname: str, folders: list[Path]) -> bool:
    """Whether the loader, or a package that is loaded before, provides the library."""
    if any((folder / soname).exists() for folder in folders):
        return True
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


class Loader:
    """What of a library's needs nothing on this host provides; each soname is looked for once."""

    def __init__(self) -> None:
        self.roots = [Path(folder) for folder in sys.path if folder and Path(folder).is_dir()]
        # torch loads the libraries of the nvidia packages, and from then on the loader has their sonames
        packaged = [lib for root in self.roots for lib in [*root.glob("nvidia/*/lib"), root / "torch" / "lib"]]
        self._shared = [lib for lib in packaged if lib.is_dir()]
        self._known: dict[str, bool] = {}

    def missing(self, path: Path) -> list[str]:
        """The sonames that a library links and that are not to be had."""
        needed, paths = dynamic(path)
        own = [Path(item.replace("$ORIGIN", str(path.parent))) for item in paths] + [path.parent]
        return [name for name in needed if not any((where / name).exists() for where in own) and not self._loads(name)]

    def _loads(self, soname: str) -> bool:
        if soname not in self._known:
            self._known[soname] = loadable(soname, self._shared)
        return self._known[soname]


def missing_libraries(loader: Loader) -> dict[str, list[str]]:
    """For each library file of a transfer backend, by its path: the sonames that nothing on this host provides."""
    found: dict[str, list[str]] = {}
    for root in loader.roots:
        for folder in LIBRARY_FOLDERS:
            for path in sorted((root / folder).glob("*.so*")):
                names = loader.missing(path)
                if names:
                    found[f"{folder}/{path.name}"] = names
    return found


def ucx(loader: Loader) -> list[dict[str, Any]]:
    """Each UCX that a NIXL wheel brings: its transport modules with what they miss, and whom its libibverbs can load.

    UCX opens a module by name from the folder beside its own library, and goes on without one that does not load.
    """
    return [
        {"folder": str(folder), "modules": _modules(loader, folder), **_verbs(folder.parent)}
        for root in loader.roots
        for folder in sorted(root.glob("*nixl*.libs/ucx"))
    ]


def _modules(loader: Loader, folder: Path) -> dict[str, list[str]]:
    names = ((MODULE.match(path.name), path) for path in sorted(folder.iterdir()))
    return {match.group(1): loader.missing(path) for match, path in names if match}


def _verbs(folder: Path) -> dict[str, Any]:
    """Where the libibverbs of a wheel looks for providers, and those it finds; linked ones are in the wheel."""
    linked = [name for name in LINKED_PROVIDERS if any(folder.glob(f"lib{name}-*.so*"))]
    for path in sorted(folder.glob("libibverbs-*.so*")):
        found = PROVIDERS.search(path.read_bytes())
        if found:
            place, abi = found.group(1).decode(), found.group(2).decode()
            there = [item.name.split("-")[0][3:] for item in Path(place).glob(f"lib*-rdmav{abi}.so")]
            return {"verbs": f"{place}/lib*-rdmav{abi}.so", "providers": sorted({*there, *linked})}
    return {"verbs": None, "providers": linked}


def main() -> None:
    """Print everything as one JSON document."""
    loader = Loader()
    document = {
        "python": sys.version.split()[0],
        "executable": sys.executable,
        "libc": os.confstr("CS_GNU_LIBC_VERSION") if hasattr(os, "confstr") else None,
        "distributions": distributions(),
        "torch_cuda": torch_cuda(),
        "missing": missing_libraries(loader),
        "ucx": ucx(loader),
    }
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()

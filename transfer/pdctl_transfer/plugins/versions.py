"""Which release of a transfer backend this process has, by the names of its wheels."""

from collections.abc import Mapping
from typing import Final

_WHEELS: Final[Mapping[str, tuple[str, ...]]] = {
    "mooncake": ("mooncake-transfer-engine", "mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine-cuda13"),
    "nixl": ("nixl", "nixl-cu12", "nixl-cu13"),
}


def backend_version(backend: str) -> str | None:
    """The version of the first wheel of the backend that is installed; None for an unknown one."""
    from importlib.metadata import PackageNotFoundError, version

    for name in _WHEELS.get(backend, ()):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None

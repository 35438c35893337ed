"""Engine adapters: command lines, readiness, live layouts; they know no launcher."""

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pdctl.engines.base import Engine


def adapter(name: str) -> "Engine":
    """The adapter of an engine family, imported when it is asked for. `name` is one that the fleet schema allows."""
    from importlib import import_module

    return cast("Engine", import_module(f"pdctl.engines.{name.replace('-', '_')}.adapter").ADAPTER)

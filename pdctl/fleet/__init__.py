"""The fleet file: model, reading with line numbers, schema.

The names are imported when they are used: the model needs pydantic, and `pdctl status` only the fleet's name.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pdctl.fleet.load import load_fleet, parse_fleet
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Fleet, Pool, Router

__all__ = ["Fleet", "LoadedFleet", "Pool", "Router", "load_fleet", "parse_fleet"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pdctl.fleet import load, model

    return getattr(load if name in vars(load) else model, name)

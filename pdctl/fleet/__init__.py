"""The fleet file: model, reading with line numbers, schema."""

from pdctl.fleet.load import LoadedFleet, load_fleet, parse_fleet
from pdctl.fleet.model import Fleet, Pool, Router

__all__ = ["Fleet", "LoadedFleet", "Pool", "Router", "load_fleet", "parse_fleet"]

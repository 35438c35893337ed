"""Fleets that run, by whomever they were started: one view of their members for everything that only looks.

`find` for a fleet by name or file, `members_of` for a fleet file that was read already.
"""

from pdctl.running.find import find, members_of
from pdctl.running.fleet import EXTERNAL, RunningFleet

__all__ = ["EXTERNAL", "RunningFleet", "find", "members_of"]

"""Moves real blocks between the hosts of a fleet before any engine runs there."""

from pdctl.preflight.probe.run import probe_fleet

__all__ = ["probe_fleet"]

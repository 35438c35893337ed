"""Bring-up: phases as data, and their runner."""

from pdctl.up.runner import bring_down, bring_up

__all__ = ["bring_down", "bring_up"]

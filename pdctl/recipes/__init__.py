"""Published launch recipes into fleet files: pure functions from a document to a fleet, and what was left out of it."""

from pdctl.recipes.convert import Converted, convert
from pdctl.recipes.left import Left
from pdctl.recipes.variants import variants

__all__ = ["Converted", "Left", "convert", "variants"]

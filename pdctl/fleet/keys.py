"""Keys that a fleet file names by environment variables: their values never stand in it."""

import os
import re
from collections.abc import Mapping
from typing import Final

KEY: Final = re.compile(r"[!-~]{1,4096}")
"""What an HTTP header carries as a token."""


def key_in(name: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The key in a variable; None for no variable, or one that holds none."""
    value = environ.get(name) if name else None
    return value if value and KEY.fullmatch(value) else None

"""What a unit was started from, kept beside its record, so that it can be said what differs from what is wanted now.

Nothing secret is in it: words that sound secret are left out of the command line, and of a variable only a salted
fingerprint is kept, short enough to fit many values.
"""

import secrets
from pathlib import Path

from pdctl.launch.base import Started, Unit, fingerprint
from pdctl.launch.record import read, write
from pdctl.redact import hide_argv

_FILE = "started.json"


def started_from(unit: Unit, salt: str | None = None) -> Started:
    """What is kept of a unit that is started now."""
    drawn = salt or secrets.token_hex(8)
    env = {name: fingerprint(drawn, value) for name, value in sorted(unit.env.items())}
    return Started(unit.digest, tuple(hide_argv(unit.argv)), env, drawn, unit.cwd)


def keep(folder: Path, unit: Unit) -> None:
    """Write it into the unit's folder. Raises OSError."""
    write(folder / _FILE, started_from(unit))


def kept(folder: Path, digest: str | None) -> Started | None:
    """What the unit of this digest was started from; None where that is not known. Raises StateError (PD3005)."""
    found = read(folder / _FILE, Started)
    return found if found is not None and found.digest == digest else None

"""What the engines of a fleet share and nobody else may know: 32 random bytes, as text, in the fleet's folder.

It goes to units in their environment, which the guard gets by standard input: never in argv, a log or a report.
"""

import re
import secrets
from pathlib import Path
from typing import Final

from pdctl import files

_BYTES: Final = 32
_TEXT: Final = re.compile(rf"[0-9a-f]{{{2 * _BYTES}}}\n?")


def kept(path: Path) -> str:
    """The secret in this file, made now where there is none, or one that others could have read or written.

    Raises OSError where it cannot be written.
    """
    return read(path) or _make(path)


def forget(path: Path) -> None:
    """Remove it. Raises OSError."""
    path.unlink(missing_ok=True)


def read(path: Path) -> str | None:
    """The secret in this file; None where there is none, or one that others could have read or written."""
    text = (files.read_own(path, refused=0o077) or b"").decode("ascii", "replace")
    return text.strip() if _TEXT.fullmatch(text) else None


def _make(path: Path) -> str:
    text = secrets.token_bytes(_BYTES).hex()
    files.replace(path, f"{text}\n".encode())
    return text

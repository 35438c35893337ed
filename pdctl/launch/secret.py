"""What the engines of a fleet share and nobody else may know: 32 random bytes, as text, in the fleet's folder.

It goes to units in their environment, which the guard gets by standard input: never in argv, a log or a report.
"""

import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

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
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        about = os.fstat(descriptor)
        private = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
        text = os.read(descriptor, 4 * _BYTES).decode("ascii", "replace") if private else ""
    finally:
        os.close(descriptor)
    return text.strip() if _TEXT.fullmatch(text) else None


def _make(path: Path) -> str:
    """A new one, in one step: a reader finds all of it or none."""
    text = secrets.token_bytes(_BYTES).hex()
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
        raise
    finally:
        os.close(descriptor)
    return text

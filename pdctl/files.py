"""Files that are written in one step, and files that are read only where nobody else could have written them."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def replace(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Put the file in place over whatever file or link is there: a reader finds the old one or the whole new one.

    mode: less what the umask takes. Raises OSError, and leaves nothing half written.
    """
    scratch = path.with_name(f".{path.name}.{os.urandom(8).hex()}")  # another for each writer: threads have one pid
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 (a descriptor)
            file.write(data)
        scratch.replace(path)
    except OSError:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise


def read_own(path: Path, refused: int = OTHERS_WRITE) -> bytes | None:
    """What a file of ours holds; None for one that is missing, a link, another's, or open to others by `refused`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & refused:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)

"""The cache: what pdctl writes once and engines run later, so nobody else may write there.

`$XDG_CACHE_HOME/pdctl/` holds the transfer core (`core/`), built-in models (`models/`) and environments (`envs/`). A
folder in which another user can put or rename files is refused: whoever writes there runs code in every engine.
"""

import os
import stat
from pathlib import Path

from pdctl import files
from pdctl.errors import GateError


def cache_root() -> Path:
    """Where pdctl's cache is, whether it exists or not."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "pdctl"


def private_folder(path: Path) -> Path:
    """The folder, made with mode 0700 where it is not there. An own one that is wider is narrowed to that.

    Raises GateError (PD3114) where somebody else could write in it or rename what leads to it, PD3115 where it cannot
    be made.
    """
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        about = path.stat()
        if about.st_uid == os.geteuid() and about.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise unwritable(path, error) from error
    real = path.resolve()
    for folder in dict.fromkeys((real, *real.parents, *path.absolute().parents)):
        reason = _why_not_ours(folder, folder == real)
        if reason:
            raise GateError(f"{folder}: {reason}", code="PD3114", hint=f"`ls -ld {folder}` shows it")
    return path


def _why_not_ours(folder: Path, own: bool) -> str | None:
    """What lets others decide what lies in the folder. `own`: it must be ours; its parents may be the system's too."""
    about = folder.stat()
    if about.st_uid != os.geteuid() and (own or about.st_uid != 0):
        return f"belongs to user {about.st_uid}, not to {os.geteuid()}"
    if about.st_mode & files.OTHERS_WRITE and not about.st_mode & stat.S_ISVTX:
        return f"others may write there (mode {stat.S_IMODE(about.st_mode):o})"
    return None


def replace(path: Path, data: bytes) -> None:
    """Put a file of mode 0600 in place, in one step, over whatever file or link is there. Raises GateError (PD3115)."""
    try:
        files.replace(path, data)
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: Path, error: OSError) -> GateError:
    """The cache cannot be written, as an error that says where and why."""
    reason = (error.strerror or str(error)).lower()
    hint = "make room or give rights there, or set XDG_CACHE_HOME to a folder that you may write"
    return GateError(f"{path}: {reason}", code="PD3115", hint=hint)

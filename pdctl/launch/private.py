"""Folders of state that nobody else may write: records in them decide which processes are signalled."""

import os
import pwd
import stat
from pathlib import Path
from shlex import quote

from pdctl.errors import GateError

_WRITABLE = stat.S_IWGRP | stat.S_IWOTH


def make(*folders: Path) -> None:
    """Make the folders, each for its owner alone, parents first; check those that are there.

    Raises GateError (PD3014) for a folder that others may write, OSError where one cannot be made.
    """
    folders[0].parent.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            check(folder)


def check(*folders: Path) -> None:
    """Raise GateError (PD3014) for a folder that is another's or that others may write; one that is absent is fine."""
    for folder in folders:
        try:
            about = folder.stat()
        except OSError:
            continue  # whoever uses it says so
        mode = stat.S_IMODE(about.st_mode)
        if about.st_uid == os.geteuid() and not mode & _WRITABLE:
            continue
        message = f"{folder}: owner {_name(about.st_uid)}, mode {mode:04o}: what lies there may be another's word"
        raise GateError(message, code="PD3014", hint=_remedy(folder, about.st_uid))


def _remedy(folder: Path, owner: int) -> str:
    if owner != os.geteuid():
        return f"run pdctl as {_name(owner)}, or set XDG_STATE_HOME to a folder of your own"
    return f"if nobody else wrote there: chmod go-w {quote(str(folder))}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"

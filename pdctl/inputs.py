"""Files that a user names: only a file is opened, nothing is waited for, and no more is read than is allowed."""

import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Final

from pdctl.errors import InputError

#: What the shell hands over: `<(command)`, standard input.
_HANDED_OVER: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")
_OTHERS: Final = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

#: What describes a model, in its folder: the first that is there. The second is Mistral's own.
CONFIG_FILES: Final = ("config.json", "params.json")


def config_file(folder: Path) -> Path | None:
    """The file that describes the model of this folder; None where there is none."""
    return next((folder / name for name in CONFIG_FILES if is_file(folder / name)), None)


def read_input(
    path: Path, most: int, kind: type[InputError] = InputError, code: str = "PD0002", missing: str | None = None
) -> bytes:
    """The file's bytes, at most one more than `most`.

    Raises `kind` with `code` where it cannot be read (`missing`: what to do where it is not there), and with PD0041
    where it is no file: a named pipe would be waited for without end, a device may have none. What the shell hands over
    by number is read as it comes.
    """
    try:
        with _opened(path, kind) as file:
            return file.read(most + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = missing if isinstance(error, FileNotFoundError | NotADirectoryError) else None
        raise kind(f"cannot be read: {reason}", where=str(path), code=code, hint=hint) from error
    except ValueError as error:  # a NUL byte in the name
        raise kind(f"cannot be read: {error}", where=str(path), code=code) from error


def _opened(path: Path, kind: type[InputError]) -> BufferedReader:
    handed_over = str(path).startswith(_HANDED_OVER)
    if not handed_over:
        _require_file(path, path.stat().st_mode, kind)  # a pipe's writer would notice that it is opened
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    try:
        if handed_over:
            os.set_blocking(file.fileno(), True)
        else:
            _require_file(path, os.fstat(file.fileno()).st_mode, kind)
    except BaseException:
        file.close()
        raise
    return file


def _require_file(path: Path, mode: int, kind: type[InputError]) -> None:
    for is_it, name in _OTHERS:
        if is_it(mode):
            hint = "give a file; what a command prints can be handed over as `<(command)`"
            raise kind(f"is {name}, not a file", where=str(path), code="PD0041", hint=hint)


def is_file(path: Path) -> bool:
    """Whether a file is there, as far as this user can know: not where a name is over-long, or the way is closed."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """The same of a folder."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False

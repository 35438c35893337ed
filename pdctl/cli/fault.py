"""What is wrong, in words: every error becomes one or more of these."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One thing that is wrong; `where` is `file:line`, a flag, a file or a command."""

    code: str
    where: str | None
    message: str
    hint: str | None = None

"""How much is said beside a result: `-q` takes progress away, `-v` adds the commands that are run and the gates asked.

Both may stand before the command or behind it. Errors, results and notes on what a result is worth are always said.
"""

import sys
from collections import deque
from typing import Any, Final

QUIET: Final = -1
USUAL: Final = 0
VERBOSE: Final = 1
FLAGS: Final = {"-q": QUIET, "--quiet": QUIET, "-v": VERBOSE, "--verbose": VERBOSE}

_level = USUAL


def level() -> int:
    """QUIET, USUAL or VERBOSE."""
    return _level


def set_level(wanted: int) -> None:
    """For the rest of the process."""
    global _level
    _level = wanted
    if wanted == VERBOSE:
        _listen()


def strip(argv: list[str]) -> list[str]:
    """Take the flags from before the command."""
    set_level(USUAL)
    while argv and argv[0] in FLAGS:
        set_level(FLAGS[argv[0]])
        argv = argv[1:]
    return argv


def options() -> list[Any]:
    """The same as options of a command's parser."""
    from typer.core import TyperOption

    def chosen(wanted: int) -> Any:
        return lambda context, option, given: set_level(wanted) if given else None

    said = ((QUIET, "--quiet", "-q", "No progress."), (VERBOSE, "--verbose", "-v", "Also say what is run and asked."))
    return [
        TyperOption(param_decls=[short, long], is_flag=True, expose_value=False, callback=chosen(wanted), help=words)
        for wanted, long, short, words in said
    ]


def _listen() -> None:
    """Show what `pdctl` logs, each line once in a while: gates are asked ten times a second."""
    import logging

    from pdctl.cli.output import note

    class ToStandardError(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.said: deque[str] = deque(maxlen=64)

        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if text not in self.said:
                self.said.append(text)
                note(f"· {text}")

    log = logging.getLogger("pdctl")
    log.handlers = [ToStandardError()]
    log.propagate = False
    log.setLevel(logging.DEBUG)


def tell(text: str, mark: str = "") -> None:
    """One line of progress, or what to do next: not where it is to be quiet."""
    if _level == QUIET:
        return
    from pdctl.cli.output import note

    note(text, mark)


def watched() -> bool:
    """Whether a line that moves is wanted: alone, and where somebody looks."""
    from pdctl.cli.output import colourful

    return _level == USUAL and colourful(sys.stderr)

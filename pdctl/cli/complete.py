"""What may come next on a command line: asked by the shell at every TAB, so nothing heavy is imported for it.

    pdctl --complete WORD... LAST

LAST is the word under the cursor, maybe empty. One candidate a line, behind a tab what it is; `:file` lets the shell
complete files as well. Only options need a command's parser, and with it typer.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from pdctl.cli.commands import COMMANDS, find
from pdctl.errors import PdctlError
from pdctl.redact import clean_line

Candidate = tuple[str, str]
FILE: Final[Candidate] = (":file", "")

POSITIONALS: Final[dict[str, tuple[str, ...]]] = {
    "up": ("file",),
    "restart": ("fleet", "units"),
    "down": ("fleet",),
    "status": ("fleet",),
    "logs": ("fleet", "units"),
    "init": ("file",),
    "check": ("file", "file"),
    "preflight": ("file",),
    "layout": ("file",),
    "plan": ("file", "file"),
    "explain": ("code",),
    "completion": ("shell",),
    "help": ("command",),
}
"""What stands where, by command; one in the plural goes on."""
SHELLS: Final = ("bash", "zsh", "fish")
VALUES: Final = {"--skip-phase": "phase", "--ignore": "code", "--facts": "file", "--save-facts": "file"}
"""Options whose values are known, and not from their type."""


def complete(words: Sequence[str]) -> None:
    """Print the candidates; none where something cannot be read: a shell that completes has nobody to tell."""
    *before, last = _joined(words) or [""]
    with suppress(OSError, ValueError, PdctlError):
        for word, says in dict(candidates(before, last)).items():
            if word.startswith(last) or word == FILE[0]:
                sys.stdout.write("\t".join(map(clean_line, filter(None, (word, says)))) + "\n")


def candidates(before: Sequence[str], last: str) -> Iterator[Candidate]:
    """All that may stand where `last` does, after `before`."""
    rest = [word for word in before if word not in ("-q", "-v", "--quiet", "--verbose")]
    if not rest:
        yield from _commands()
        if last.startswith("-"):
            yield from ((flag, "") for flag in ("--help", "--version", "--quiet", "--verbose"))
        return
    command, *given = rest
    if command not in POSITIONALS and command not in {one.name for one in COMMANDS}:
        return
    if any(word.startswith("-") for word in (*given, last)):
        yield from _with_options(command, given, last)
    else:
        yield from _positional(command, given)


def _joined(words: Sequence[str]) -> list[str]:
    """Bash takes `--output=json` apart: `--output`, `=`, `json`."""
    found: list[str] = []
    for word in words:
        if word == "=":
            continue
        found += word.split("=", 1) if word.startswith("--") and "=" in word else [word]
    return [*found, ""] if words and words[-1] == "=" else found


def _positional(command: str, given: Sequence[str]) -> Iterator[Candidate]:
    kinds = POSITIONALS.get(command, ())
    kind = kinds[min(len(given), len(kinds) - 1)] if kinds else ""
    if len(given) < len(kinds) or kind == "units":
        yield from KINDS[kind](given)


def _with_options(command: str, given: Sequence[str], last: str) -> Iterator[Candidate]:
    """By the command's own parser: which options there are, which take a value, and which values."""
    from pdctl.cli.parser import parser_of

    options = {flag: one for one in parser_of(find(command)).params for flag in _flags(one)}
    expects = options.get(given[-1]) if given else None
    if expects is not None and _takes_value(expects):
        yield from _values(given[-1], expects)
    elif last.startswith("-"):
        yield "--help", "What the command takes"
        for flag, one in options.items():
            yield flag, (getattr(one, "help", None) or "").partition(". ")[0]
    else:
        yield from _positional(command, list(_words(given, options)))


def _flags(param: Any) -> list[str]:
    return [flag for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")]


def _takes_value(option: Any) -> bool:
    return not getattr(option, "is_flag", False) and not getattr(option, "count", False)


def _words(given: Sequence[str], options: dict[str, Any]) -> Iterator[str]:
    """Those that are neither options nor their values."""
    skip = False
    for word in given:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in options and _takes_value(options[word])
        else:
            yield word


def _values(flag: str, option: Any) -> Iterator[Candidate]:
    choices = getattr(option.type, "choices", None)
    if choices:
        yield from ((str(getattr(choice, "value", choice)), "") for choice in choices)
    elif flag in VALUES:
        yield from KINDS[VALUES[flag]](())
    elif "path" in str(getattr(option.type, "name", "")).lower() or option.metavar == "DIR":
        yield FILE


def _commands(given: Sequence[str] = ()) -> Iterator[Candidate]:
    yield from ((one.name, one.help) for one in COMMANDS)
    yield "help", "What a command takes"


def _file(given: Sequence[str]) -> Iterator[Candidate]:
    yield FILE


def _fleets(given: Sequence[str]) -> Iterator[Candidate]:
    from pdctl.launch.state import known_fleets

    yield from ((name, "fleet") for name in known_fleets())
    yield FILE


def _units(given: Sequence[str]) -> Iterator[Candidate]:
    yield from ((name, "unit") for name in _members(given[0]) if name not in given[1:])


def _members(fleet: str) -> list[str]:
    """Units of a fleet of ours by their folders, of somebody else's by its file."""
    if fleet.endswith((".yaml", ".yml")) and b"external" in Path(fleet).read_bytes()[: 1 << 20]:
        from pdctl.fleet import load_fleet
        from pdctl.running.external import by_file

        loaded = load_fleet(fleet)
        if loaded.fleet.external:
            return [one.name for one in by_file(loaded).members]
    from pdctl.launch.state import FleetFolder

    folder = FleetFolder(_name_of(fleet)).units
    return [path.name for path in sorted(folder.iterdir())] if folder.is_dir() else []


def _name_of(fleet: str) -> str:
    """A fleet's name; of a file what its line `name:` says, for a TAB is no time to judge a file."""
    if not fleet.endswith((".yaml", ".yml")):
        return fleet.replace("/", "_")
    found = re.search(rb"^name:\s*[\"']?([a-z0-9-]+)", Path(fleet).read_bytes()[: 1 << 20], re.MULTILINE)
    return found[1].decode() if found else "_"


def _codes(given: Sequence[str]) -> Iterator[Candidate]:
    text = files("pdctl.catalog").joinpath("codes.toml").read_text(encoding="utf-8")
    yield from re.findall(r'^\[(PD\d{4})\]\ntitle = "(.*)"$', text, re.MULTILINE)


def _shells(given: Sequence[str]) -> Iterator[Candidate]:
    yield from ((shell, "") for shell in SHELLS)


def _phases(given: Sequence[str]) -> Iterator[Candidate]:
    from pdctl.up.phases import PHASES

    yield from ((phase.name, phase.says) for phase in PHASES)


KINDS: Final[dict[str, Callable[[Sequence[str]], Iterator[Candidate]]]] = {
    "file": _file,
    "fleet": _fleets,
    "units": _units,
    "code": _codes,
    "shell": _shells,
    "command": _commands,
    "phase": _phases,
}

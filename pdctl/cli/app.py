"""The outermost edge: which command runs, and how its errors become an exit status.

`pdctl --version` and `pdctl --help` import nothing but this file and the table; the module of a command, and typer with
it, is imported when that command runs. A command module `pdctl/cli/<name>.py` exposes one function `command`, whose
annotated parameters typer turns into options, and which returns its exit status (None: 0).
"""

import sys
from collections.abc import Sequence

from pdctl.cli.commands import COMMANDS, Command, find
from pdctl.cli.verbosity import strip

USAGE_ERROR = 2
ENVIRONMENT = {
    "XDG_STATE_HOME": "state of fleets, in its folder pdctl (~/.local/state)",
    "XDG_CACHE_HOME": "what is shipped and built, likewise (~/.cache)",
    "PDCTL_SSH": 'the SSH client\'s command, such as "ssh -F lab/config"',
    "PDCTL_SGLANG_PYTHON": "runs SGLang's engines whose pool has no environment",
    "PDCTL_VLLM_PYTHON": "likewise vLLM's",
    "PDCTL_VLLM_ASCEND_PYTHON": "likewise vllm-ascend's",
    "PDCTL_PLUGIN": "off: engines do without pdctl's plugin",
    "PDCTL_TRANSFER_SECRET": "what reference engines sign with; `up` draws one",
    "PDCTL_DEBUG": "1: the traceback of an error",
    "NO_COLOR": "no colour, no movement; TERM=dumb does the same",
    "COLUMNS": "the width of tables where there is no terminal",
}
"""Variables that an operator may set."""


def main(argv: Sequence[str]) -> int:
    """Run `pdctl ARGV` and return its exit status. Never raises; never shows a traceback unless PDCTL_DEBUG is set."""
    try:
        status = _dispatch(strip(list(argv)))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  the outermost edge
        from pdctl.cli.failure import report

        return report(error, argv)
    return status


def _dispatch(argv: list[str]) -> int:
    match argv:
        case [] | ["-h" | "--help" | "help"]:
            sys.stdout.write(_overview())
            return 0
        case ["-V" | "--version"]:
            from pdctl import __version__

            sys.stdout.write(f"pdctl {__version__}\n")
            return 0
        case ["--complete", *words]:
            from pdctl.cli.complete import complete

            complete(words)
            return 0
        case ["help", name, *_]:
            return _run(find(name), ["--help"])
        case [name, *rest]:
            return _run(find(name), rest)
    return USAGE_ERROR


def _run(command: Command, args: list[str]) -> int:
    """Parse `args` as the parameters of the command's function say, and call it."""
    import gc

    from pdctl.cli.parser import parser_of

    parser = parser_of(command)
    try:
        status = parser.main(args=args, prog_name=f"pdctl {command.name}", standalone_mode=False)
    finally:
        gc.freeze()  # the interpreter looks for garbage once more before it ends
    return status if isinstance(status, int) else 0


def _overview() -> str:
    """The top-level help, from the table alone."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [
        "Usage: pdctl COMMAND [ARGS]...",
        "",
        "Runs fleets that serve large language models with prefill and decode",
        "disaggregated: will this pair work, bring it up, is it moving what it",
        "should, and why not.",
    ]
    for group in dict.fromkeys(command.group for command in COMMANDS):
        lines += ["", f"{group}:"]
        lines += [f"  {command.name:<{width}}  {command.help}" for command in COMMANDS if command.group == group]
    lines += [
        "",
        "Options:",
        f"  {'--version':<{width}}  Print the version",
        f"  {'--help':<{width}}  This text; after a command, that command's",
        f"  {'-q, -v':<{width}}  No progress; also what is run and asked",
        "",
        "Exit status: 0 all held, 1 pdctl or its surroundings failed, 2 unusable input,",
        "3 an error was found, 4 only warnings (with --fail-on warning), 130",
        "interrupted, 141 the reader of the output has gone.",
        "",
        "Environment:",
        *(f"  {name:<24} {says}" for name, says in ENVIRONMENT.items()),
    ]
    return "\n".join(lines) + "\n"

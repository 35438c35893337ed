"""The command table and the outermost edge: which command runs, and how its errors become an exit status.

`pdctl --version` and `pdctl --help` import nothing but this file; a command's module, and typer with it, is imported
when that command runs. A command module `pdctl/cli/<name>.py` exposes one function `command`, whose annotated
parameters typer turns into options, and which returns its exit status (None: 0).
"""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from pdctl.cli.verbosity import options, strip

USAGE_ERROR = 2
ENVIRONMENT = {
    "XDG_STATE_HOME": "state of fleets, in its folder pdctl (~/.local/state)",
    "XDG_CACHE_HOME": "what is shipped and built, likewise (~/.cache)",
    "PDCTL_SSH": 'the SSH client\'s command, such as "ssh -F lab/config"',
    "PDCTL_SGLANG_PYTHON": "interpreter of SGLang's engines without an environment",
    "PDCTL_VLLM_PYTHON": "likewise of vLLM's",
    "PDCTL_PLUGIN": "off: engines do without pdctl's plugin",
    "PDCTL_TRANSFER_SECRET": "what reference engines sign with; `up` draws one",
    "PDCTL_DEBUG": "1: the traceback of an error",
    "NO_COLOR": "no colour, no movement; TERM=dumb does the same",
    "COLUMNS": "the width of tables where there is no terminal",
}
"""Variables that an operator may set."""
_MORE = "`pdctl --help` lists what every exit status means, and environment variables."


class Command(NamedTuple):
    """One row of the table. The module is named, not imported. (A dataclass would cost 25 ms of every start.)"""

    name: str
    group: str
    help: str

    @property
    def module(self) -> str:
        return f"pdctl.cli.{self.name.replace('-', '_')}"


COMMANDS = (
    Command("up", "Run a fleet", "Bring a fleet up, phase by phase"),
    Command("restart", "Run a fleet", "Restart units, once their requests are done"),
    Command("down", "Run a fleet", "Take a fleet down; leave nothing behind"),
    Command("status", "Run a fleet", "Say what runs and whether it answers"),
    Command("ps", "Run a fleet", "List the fleets of this user, and whether they are whole"),
    Command("logs", "Run a fleet", "Print or follow the log of a unit"),
    Command("init", "Before it runs", "Write a fleet file to start from"),
    Command("check", "Before it runs", "Will this pair work? Judge a fleet file or two layouts"),
    Command("preflight", "Before it runs", "Judge the hosts that a fleet is to run on"),
    Command("layout", "Before it runs", "Print the layout of one side"),
    Command("plan", "Before it runs", "Print what is copied from where to where"),
    Command("discover", "Before it runs", "Show this host's adapters, GPUs and how they lie"),
    Command("explain", "Look up", "Explain a code: what it means, what to do"),
    Command("completion", "Look up", "Print what bash, zsh or fish need to complete words"),
    Command("schema", "Look up", "Print the JSON schema of the fleet file"),
)


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


def find(name: str) -> Command:
    """The row of this name. Raises InputError with the nearest."""
    for command in COMMANDS:
        if command.name == name:
            return command
    from difflib import get_close_matches

    from pdctl.errors import InputError

    kind = "option" if name.startswith("-") else "command"
    names = (
        ["--help", "--version", "--quiet", "--verbose"]
        if kind == "option"
        else ["help", *(command.name for command in COMMANDS)]
    )
    close = get_close_matches(name, names, n=1)
    hint = f'did you mean "{close[0]}"?' if close else "`pdctl --help` lists the commands"
    raise InputError(f'no {kind} "{name}"', where="pdctl", hint=hint)


def _run(command: Command, args: list[str]) -> int:
    """Parse `args` as the parameters of the command's function say, and call it."""
    status = parser_of(command).main(args=args, prog_name=f"pdctl {command.name}", standalone_mode=False)
    return status if isinstance(status, int) else 0


def parser_of(command: Command) -> Any:
    """What typer makes of the command's function."""
    import gc
    import inspect
    from importlib import import_module

    gc.disable()  # what imports make stays: looking through it for garbage takes a tenth of a start
    import typer

    module = import_module(command.module)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 120}
    help_text = inspect.getdoc(module.command) or command.help
    app.command(command.name, help=help_text, epilog=_MORE, context_settings=settings)(module.command)
    parser = typer.main.get_command(app)
    parser.params.extend(options())
    gc.freeze()
    gc.enable()
    return parser


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
        *(f"  {name:<21}  {says}" for name, says in ENVIRONMENT.items()),
    ]
    return "\n".join(lines) + "\n"

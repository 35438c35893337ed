"""The table of commands. Each is a module, imported when it runs."""

from typing import NamedTuple


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

"""What a command takes, as typer reads it off the command's function."""

from typing import Any

from pdctl.cli.commands import Command
from pdctl.cli.verbosity import options

_MORE = "`pdctl --help` lists what every exit status means, and environment variables."

GC_THRESHOLD = 100_000
"""What a command imports and reads stays too: the usual 700 objects would have it looked through a hundred times."""


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
    _spell(parser)
    gc.freeze()
    gc.enable()
    gc.set_threshold(GC_THRESHOLD)
    return parser


def _spell(parser: Any) -> None:
    """One spelling of what stands for a value: capitals, and brackets around what may be left out."""
    stands_for = {"int": "N", "int range": "N", "float": "N", "float range": "N", "str": "NAME"}
    for parameter in parser.params:
        if parameter.param_type_name == "option":
            parameter.metavar = parameter.metavar or stands_for.get(parameter.type.name)
            continue
        name = (parameter.metavar or parameter.name).upper()
        shown = name if parameter.required or name.startswith("[") else f"[{name}]"
        setattr(parameter, "make_metavar", lambda ctx, usage=False, shown=shown: shown)  # noqa: B010  mypy: a method

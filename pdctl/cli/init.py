"""`pdctl init`: a fleet file to start from."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from pdctl.cli.output import result
from pdctl.cli.verbosity import tell
from pdctl.errors import InputError
from pdctl.fleet.names import NAME_PATTERN
from pdctl.inputs import config_file, is_folder


def command(
    file: Annotated[Path, typer.Argument(metavar="[FILE]", help="Where to write it; - for standard output.")] = Path(
        "fleet.yaml"
    ),
    engine: Annotated[
        Literal["sglang", "vllm", "reference"], typer.Option(help="The engine that serves.")
    ] = "reference",
    model: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the model, with its config.json; or builtin:NAME.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the fleet; by default the file's or the model's.")] = None,
) -> None:
    """Write a commented fleet file for one prefill and one decode engine; asks nothing, overwrites nothing.

    `pdctl check` finds nothing in it; adapt sizes, replicas and hosts to what you have.
    """
    from pdctl.fleet.template import BUILTIN, fleet_text, name_for

    if model is None:
        if engine != "reference":
            hint = "the folder that holds its config.json"
            raise InputError(f"{engine} needs a model", where="--model", hint=hint)
        model = BUILTIN
    if not model.startswith("builtin:"):
        model = _folder(model)
    if name is not None and not re.fullmatch(NAME_PATTERN, name):
        hint = "lower-case letters, digits and hyphens, at most 63"
        raise InputError(f'"{name}" is no name for a fleet', where="--name", hint=hint)
    text = fleet_text(engine, model, name or name_for(file, model), "FLEET" if str(file) == "-" else file.name)
    if str(file) == "-":
        result(text.removesuffix("\n"))
        return
    _write(file, text)
    result(f"wrote {file}")
    tell(f"  pdctl check {file} · pdctl up {file}")


def _folder(model: str) -> str:
    """The model's folder, whole. Raises InputError (PD0011)."""
    folder = Path(model).expanduser()
    if config_file(folder) is None:
        what = "there is no config.json in it" if is_folder(folder) else "no such folder"
        raise InputError(f"{model}: {what}", where="--model", code="PD0011", hint="give the folder of the model")
    return str(folder.resolve())


def _write(file: Path, text: str) -> None:
    """Raises InputError: PD0023 the file is there, PD0025 it cannot be written."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        hint = "give another name, or remove it first"
        raise InputError("is there already", where=str(file), code="PD0023", hint=hint) from None
    except (OSError, ValueError) as error:
        raise _unwritable(file, error) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        file.unlink(missing_ok=True)
        raise _unwritable(file, error) from error


def _unwritable(file: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"cannot be written: {str(reason).lower()}", where=str(file), code="PD0025")

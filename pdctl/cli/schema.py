"""`pdctl schema`."""

from typing import Annotated, Literal

import typer

from pdctl.cli.output import result_json


def command(
    output: Annotated[Literal["json"], typer.Option("-o", "--output", help="It is JSON in any case.")] = "json",
) -> None:
    """Print the JSON schema of the fleet file, `pdctl.fleet/v1`."""
    from pdctl.fleet.schema import json_schema

    result_json(json_schema())

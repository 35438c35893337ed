"""`pdctl schema`."""

from pdctl.cli.output import result_json


def command() -> None:
    """Print the JSON schema of the fleet file, `pdctl.fleet/v1`."""
    from pdctl.fleet.schema import json_schema

    result_json(json_schema())

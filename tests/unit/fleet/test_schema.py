"""The published schema: editors judge fleet files with it, so it must agree with the model."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from pdctl.fleet.schema import json_schema

ROOT = Path(__file__).parents[3]


def test_the_committed_schema_is_current() -> None:
    """`pdctl schema > docs/fleet.schema.json` writes it."""
    assert json.loads((ROOT / "docs/fleet.schema.json").read_text()) == json_schema()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_the_schema_takes_every_example(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


@pytest.mark.parametrize(
    "changes",
    [
        {"prefil": {}},
        {"engine": "trt"},
        {"prefill": {"page_size": 0}},
        {"decode": []},
        {"decode": {"page_sise": 1}},
        {"roles": {"encode": {"replica": 1}}},
        {"name": "Big"},
    ],
)
def test_the_schema_refuses_what_the_model_refuses(changes: dict[str, object]) -> None:
    fleet = yaml.safe_load((ROOT / "examples/tiny-hybrid.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**fleet, **changes}, json_schema())

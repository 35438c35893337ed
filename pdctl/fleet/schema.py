"""The JSON schema of the fleet file, made from the model so that the two cannot differ."""

from typing import Any

from pdctl.fleet.model import SCHEMA, Fleet


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of `pdctl.fleet/v1`: editors complete and check fleet files with it."""
    schema = Fleet.model_json_schema(by_alias=True)
    for role in ("prefill", "decode"):
        schema["properties"][role] = _one_or_many(role)
    schema["properties"]["roles"]["additionalProperties"] = _one_or_many("roles")
    urls = schema["$defs"]["Pool"]["properties"]["urls"]
    urls["items"] = {"anyOf": [{"type": "string"}, urls["items"]]}
    meeting = schema["$defs"]["Pool"]["properties"]["dist_init_address"]
    meeting |= {"anyOf": [{"type": "string"}, {"type": meeting.pop("type"), "items": meeting.pop("items")}]}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA}
    return {**head, **schema, "title": "pdctl fleet file"}


def _one_or_many(title: str) -> dict[str, Any]:
    pool = {"$ref": "#/$defs/Pool"}
    return {"title": title, "anyOf": [pool, {"type": "array", "items": pool, "minItems": 1}]}

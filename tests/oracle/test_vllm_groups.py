"""What vLLM 0.32 makes of a model's layers equals the derived layout: which keep what, how much, in which blocks."""

import json
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import pytest

from pdctl.derive import Request, derive
from pdctl_transfer.layout.manifest import Entry, Manifest
from pdctl_transfer.rules import Finding, Pair, Side, judge

DATA = Path(__file__).parents[1] / "data" / "oracle"
DUMPS = sorted((DATA / "vllm_groups").glob("*.json"))
BYTES = {"bfloat16": 2, "float32": 4}


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def dump(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(json.loads(request.param.read_text(encoding="utf-8")))


def derived(dump: dict[str, Any], role: Any = "prefill") -> Manifest:
    config = json.loads((DATA / "configs" / f"{dump['model']}.json").read_text(encoding="utf-8"))
    return derive(Request(engine="vllm", role=role, config=config, tp=dump["tp"], backend="nixl")).manifest


def entries(manifest: Manifest, kind: str) -> list[Entry]:
    (stage,) = manifest.stages
    return [entry for part in stage.components if part.kind == kind for entry in part.entries]


def test_blocks_are_as_long(dump: dict[str, Any]) -> None:
    assert derived(dump).page_size == dump["block_size"]


def test_the_same_layers_keep_attention_of_the_same_size(dump: dict[str, Any]) -> None:
    held = {entry.layer: entry.item_len for entry in entries(derived(dump), "kv")}
    seen = {}
    for group in dump["groups"]:
        if group["spec"] != "MambaSpec":
            row = group["num_kv_heads"] * (group["head_size"] + group["head_size_v"]) * BYTES[group["dtype"]]
            assert row * group["block_size"] == group["page_bytes"]
            seen |= dict.fromkeys(group["layers"], group["page_bytes"])
    assert held == seen


def test_the_same_layers_keep_states_of_the_same_size(dump: dict[str, Any]) -> None:
    """By the number of a state's tensors and the bytes of each; a page that holds them is padded to the attention's."""
    held: dict[int | None, list[int]] = {}
    for entry in entries(derived(dump), "mamba"):
        held.setdefault(entry.layer, []).append(entry.item_len)
    groups = [group for group in dump["groups"] if group["spec"] == "MambaSpec"]
    seen = {
        layer: [prod(shape) * BYTES[kind] for shape, kind in zip(group["shapes"], group["dtypes"], strict=True)]
        for group in groups
        for layer in group["layers"]
    }
    assert held == seen
    assert len(list(chain.from_iterable(group["layers"] for group in groups))) == len(seen)


def test_what_the_connector_refuses_at_its_start_is_refused(dump: dict[str, Any]) -> None:
    """NIXL's worker was made with these groups: it raised for states that are not a window and a recurrence."""
    pair = Pair(Side(derived(dump), "prefill"), Side(derived(dump, "decode"), "decode"))
    said = [outcome for outcome in judge(pair) if isinstance(outcome, Finding)]
    refused = [one for one in said if "NotImplementedError" in str(one.params)]
    assert bool(refused) == ("refused" in dump)

"""The live manifest: what is in memory, and exactly what is derived from the config alone."""

import json
from dataclasses import replace

import pytest

from pdctl.derive import Request, derive
from pdctl.engines.reference.config import config_path
from pdctl.engines.reference.engine import Engine
from pdctl_transfer.layout.algebra import faults
from pdctl_transfer.layout.manifest import Manifest
from tests.unit.reference.steps import SMALL

CASES = {
    "alone": {},
    "tp 2": {"tp": 2},
    "tp 4, where kv heads repeat": {"tp": 4},
    "two stages, one without sparse attention": {"pp": 2},
    "pages of 32": {"page_size": 32},
    "float32": {"dtype": "float32"},
    "a draft": {"draft": True},
    "a draft on the last of two stages of two ranks": {"draft": True, "tp": 2, "pp": 2},
    "attention dp 4": {"tp": 4, "dp": 4},
    "mla": {"model": "builtin:tiny-mla"},
    "mla, two stages of four ranks": {"model": "builtin:tiny-mla", "tp": 4, "pp": 2},
}


@pytest.mark.parametrize("case", CASES)
def test_live_layout_is_the_derived_one(case: str) -> None:
    options = replace(SMALL, **CASES[case])  # type: ignore[arg-type]
    live = Engine(options).manifest()
    path = config_path(options.model)
    derived = derive(
        Request(
            engine="reference",
            role="prefill",
            config=json.loads(path.read_text()),
            config_source=str(path),
            model_name=live.model.name,
            tp=options.tp,
            pp=options.pp,
            dp=options.dp,
            page_size=options.page_size,
            kv_cache_dtype=options.dtype,
            backend=options.backend,
            speculative=live.speculative,
        )
    ).manifest
    assert live.stages == derived.stages
    assert live.model == derived.model
    assert live.parallel == derived.parallel
    assert (live.page_size, live.kv_cache_dtype, live.kv_layout) == (
        derived.page_size,
        derived.kv_cache_dtype,
        derived.kv_layout,
    )
    assert not faults(live)


def test_item_lengths_are_those_of_the_tensors() -> None:
    """Fails if the manifest and the memory are described by two formulas that can drift apart."""
    engine = Engine(replace(SMALL, tp=4, pp=2, draft=True))
    manifest: Manifest = engine.manifest()
    for stage, ranks in zip(manifest.stages, engine.groups[0].pools, strict=True):
        entries = [entry for component in stage.components for entry in component.entries]
        for pools in ranks:
            tensors = [pools[buffer.key] for buffer in pools.buffers]
            assert [entry.item_len for entry in entries] == [tensor[0].nbytes for tensor in tensors]
            assert all(tensor.is_contiguous() for tensor in tensors)

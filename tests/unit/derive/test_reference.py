"""The reference engine's layout as derived equals what the engine has in memory."""

import json
from typing import Any

import pytest

from pdctl.derive import Request, derive
from pdctl.errors import ConfigError
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules import Finding, Pair, judge
from tests.unit.derive.models import LLAMA, oracle

torch = pytest.importorskip("torch")

from pdctl.engines.reference.config import config_path  # noqa: E402
from pdctl.engines.reference.engine import Engine  # noqa: E402
from pdctl.engines.reference.options import EngineOptions  # noqa: E402


def derived(model: str, *, draft: bool = False, dtype: str = "auto", **sizes: int) -> Manifest:
    request = Request(
        engine="reference",
        role="prefill",
        config=json.loads(config_path(model).read_text()),
        kv_cache_dtype=dtype,
        speculative={"algorithm": "NEXTN", "num_steps": 1} if draft else None,
        **sizes,
    )
    return derive(request).manifest


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"tp": 4},
        {"tp": 2, "pp": 2, "draft": True},
        {"pp": 3, "dtype": "float32"},
        {"tp": 4, "dp": 2, "page_size": 32},
    ],
)
@pytest.mark.parametrize("model", ["builtin:tiny-hybrid", "builtin:tiny-mla"])
def test_derived_equals_live(model: str, sizes: dict[str, Any]) -> None:
    if model.endswith("mla"):
        sizes = {key: value for key, value in sizes.items() if key != "draft"}
    live = Engine(EngineOptions(model=model, role="prefill", **sizes)).manifest()
    made = derived(model, **sizes)
    assert made.stages == live.stages
    assert (made.parallel, made.page_size, made.kv_cache_dtype) == (live.parallel, live.page_size, live.kv_cache_dtype)
    assert (made.kv_layout, made.speculative) == (live.kv_layout, live.speculative)


def test_models_that_it_cannot_run_are_said() -> None:
    for config in (oracle("gpt_oss_120b"), oracle("deepseek_v32"), {**LLAMA, "head_dim": 64, "v_head_dim": 32}):
        with pytest.raises(ConfigError, match="reference engine"):
            derive(Request(engine="reference", role="prefill", config=config))


@pytest.mark.code("PD1038")
def test_another_rotary_base_is_no_partner() -> None:
    """Equal buffers, other numbers in them: the rules that both engines run at their handshake refuse it."""
    config = json.loads(config_path("builtin:tiny-hybrid").read_text())
    prefill, decode = (
        derive(Request(engine="reference", role=role, config={**config, "rope_theta": base})).manifest
        for role, base in (("prefill", 1000), ("decode", 10000))
    )
    assert [one.code for one in judge(Pair.of(prefill, decode)) if isinstance(one, Finding)] == ["PD1038"]

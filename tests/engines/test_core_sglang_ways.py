"""SGLang with the core inside, on CPU: what it stands on in the engine, decode's prefix cache, and
whole pages of slices for a decode engine without the plugin."""

import json
import os
import subprocess
from collections.abc import Sequence

import pytest

from pdctl.engines.alike import NONE
from pdctl.engines.http import get_json
from pdctl.engines.words import core_file, interpreter
from pdctl_transfer.plugins.sglang_core import BACKENDS
from tests.engines import core_pairs
from tests.engines.core_pairs import AT_ONCE, TOKENS, fresh
from tests.engines.fleets import ROOT
from tests.engines.shared import Shared

pytestmark = pytest.mark.engines


def test_the_table_of_shapes_is_the_installed_engines(sglang_dense: Shared) -> None:
    """A release that renames something must be seen here, before an operator's engine falls back to its own path."""
    code = f"""
import json
from pdctl_transfer.plugins.sglang_shape import unlike, unlike_slices
print(json.dumps([fault for backend in {sorted(BACKENDS)} for fault in unlike(backend)] + unlike_slices()))
"""
    (engine,) = sglang_dense.ready("p1")
    environment = os.environ | {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(core_file())}
    python = interpreter(engine.pool, "sglang")
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_what_decodes_prefix_cache_holds_does_not_travel(sglang_dense: Shared) -> None:
    start = fresh(640)
    for prompt in (start, start + fresh(200), start):
        assert sglang_dense.unlike(("p1", "cached"), [prompt], NONE, TOKENS, 1) == []
    (prefill,) = sglang_dense.ready("p1")
    events = get_json(f"{prefill.url}/server_info")["internal_states"][0]["pdctl"]["events"]
    first, second, third = [event["data"]["bytes"] for event in events if event["what"] == "written"][-3:]
    assert second < first
    assert third < second


def test_a_decode_without_the_plugin_gets_whole_pages_at_unequal_tp(sglang_dense: Shared) -> None:
    """SGLang's own slices of a token are refused by Mooncake from about 1500 tokens on."""
    prompts: Sequence[tuple[int, ...]] = (*core_pairs.few(), fresh(4200))
    assert sglang_dense.unlike(("p1", "off2"), prompts, NONE, TOKENS, AT_ONCE) == []

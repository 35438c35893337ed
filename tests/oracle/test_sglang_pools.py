"""The copier finds the buffers that SGLang registers in its own pools' tensors."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.oracle.installed import sglang_python

ROOT = Path(__file__).parents[2]


@pytest.mark.engines
@pytest.mark.timeout(900)
def test_every_registered_buffer_is_found_in_a_pools_tensors() -> None:
    python = sglang_python()
    if python is None:
        pytest.skip("no environment with SGLang (make test-engines builds one, PDCTL_SGLANG_PYTHON names another)")
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(ROOT / "transfer")}
    script = Path(__file__).with_name("sglang_pools.py")
    done = subprocess.run(
        [python, str(script)], capture_output=True, text=True, check=True, env=environment, timeout=850
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"MHA": [6, [1, 2, 3, 4, 5, 6], True], "MLA": [3, [1, 2, 3], True]}

"""The SGLang adapter: everything `up` asks of an engine."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pdctl.engines import shipping
from pdctl.engines.base import Command, Instance, Need, Probe, Readiness
from pdctl.engines.builtin_models import CONFIGS, PREFIX, is_builtin, materialise
from pdctl.engines.sglang.command import command
from pdctl.engines.sglang.probe import probe
from pdctl.engines.sglang.stages import stage
from pdctl.engines.words import interpreter
from pdctl.errors import InputError
from pdctl.fleet.model import Fleet, Pool

PLUGINS: Final = "sglang.srt.plugins"
_PACKAGES: Final = {"mooncake": "mooncake.engine", "nixl": "nixl._api", "mori": "mori"}

#: SGLang's own parser and resolution, in its own environment.
_PARSE: Final = """\
import json, sys
from sglang.srt.server_args import prepare_server_args
argv = json.loads(sys.stdin.read())
arguments = prepare_server_args(argv)
if hasattr(arguments, "resolve_once"):
    arguments.resolve_once()
"""


class SGLang:
    """SGLang 0.5.x, prefill and decode, behind smg or sglang-router."""

    name = "sglang"
    exact = False
    readiness = Readiness("/health", 1800.0)

    def purposes(self, pool: Pool) -> Sequence[str]:
        """A prefill engine also runs the bootstrap server, where decode engines find its ranks."""
        return ("http", "bootstrap") if pool.role == "prefill" else ("http",)

    def needs(self, fleet: Fleet, pool: Pool) -> Sequence[Need]:
        """The engine, its transfer backend, the model. A built-in model is written here, on first use."""
        python = interpreter(pool, self.name)
        how = "set `environment` to the virtual environment that has it; for CPU: python tools/engine_envs.py sglang"
        needs = [Need("package", "sglang", how, python)]
        package = _PACKAGES.get(fleet.transfer.backend)
        if package and pool.role in ("prefill", "decode"):
            needs.append(
                Need("package", package, f"install {fleet.transfer.backend} in the engine's environment", python)
            )
        path = fleet.model.path
        if is_builtin(path):
            materialise(path.removeprefix(PREFIX))
        elif path.startswith(PREFIX):
            known = ", ".join(sorted(PREFIX + name for name in CONFIGS))
            raise InputError(f"SGLang cannot serve {path}", where="model.path", code="PD3104", hint=f"one of {known}")
        return needs

    def command(self, instance: Instance) -> Command:
        """The exact command line and environment."""
        return command(instance)

    def stage(self, log: str) -> str | None:
        """What a starting engine is doing."""
        return stage(log)

    def ship_core(self, pools: Sequence[Pool]) -> str:
        """Unpack the core beside the environments and let each engine's own interpreter say which it would load."""
        folder = shipping.install()
        pythons = sorted({interpreter(pool, self.name) for pool in pools})
        digests = {shipping.verify(python, folder, PLUGINS) for python in pythons}
        return f"pdctl-transfer sha256:{digests.pop()[:16]} in {len(pythons)} environment(s), from {folder}"

    def probe(self, prefill: Instance, decode: Instance, prompt: str, max_tokens: int, timeout_s: float) -> Probe:
        """One greedy request through this very pair."""
        return probe(prefill, decode, prompt, max_tokens, timeout_s)

    def validate(self, instance: Instance) -> None:
        """Let the installed engine parse its flags. Raises InputError (PD3103) with the parser's own words."""
        made = command(instance)
        done = subprocess.run(
            [made.argv[0], "-c", _PARSE],
            input=json.dumps(made.argv[3:]),
            env=os.environ | dict(made.env) | {"PDCTL_PLUGIN": "off"},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
            reason = lines[-1] if lines else f"exit status {done.returncode}"
            raise InputError(
                f"{instance.pool.key}: SGLang refuses its flags: {reason}",
                where=f"{instance.pool.key}.args",
                code="PD3103",
                hint=f"{Path(made.argv[0]).name} -m sglang.launch_server --help",
            )


ADAPTER = SGLang()

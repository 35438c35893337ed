"""The vLLM adapter: everything `up` asks of an engine."""

from collections.abc import Sequence
from typing import Final

from pdctl.engines import shipping
from pdctl.engines.base import Command, Instance, Need, Probe, Readiness
from pdctl.engines.builtin_models import CONFIGS, PREFIX, is_builtin, materialise
from pdctl.engines.vllm.command import CONNECTORS, ROLES, command
from pdctl.engines.vllm.probe import probe
from pdctl.engines.vllm.stages import stage
from pdctl.engines.words import interpreter
from pdctl.errors import InputError
from pdctl.fleet.model import Fleet, Pool

PLUGINS: Final = "vllm.general_plugins"
_PACKAGES: Final = {"mooncake": "mooncake.engine", "nixl": "nixl._api"}


class VLLM:
    """vLLM 0.32, prefill and decode, behind vllm-router."""

    name = "vllm"
    exact = False
    readiness = Readiness("/health", 1800.0)

    def purposes(self, pool: Pool) -> Sequence[str]:
        """Both roles of a NIXL pair listen on a side channel; Mooncake's prefill runs a bootstrap server."""
        return ("http", "side_channel", "bootstrap") if pool.role in ROLES else ("http",)

    def needs(self, fleet: Fleet, pool: Pool) -> Sequence[Need]:
        """The engine, its transfer backend, the model. A built-in model is written here, on first use."""
        python = interpreter(pool, self.name)
        if fleet.transfer.backend not in CONNECTORS:
            hint = f"one of {', '.join(CONNECTORS)}"
            raise InputError(
                f"vLLM has no connector for {fleet.transfer.backend}",
                where="transfer.backend",
                code="PD3105",
                hint=hint,
            )
        how = "set `environment` to the virtual environment that has it; for CPU: python tools/engine_envs.py vllm"
        needs = [Need("package", "vllm", how, python)]
        if pool.role in ROLES:
            backend = fleet.transfer.backend
            needs.append(Need("package", _PACKAGES[backend], f"install {backend} in the engine's environment", python))
        path = fleet.model.path
        if is_builtin(path):
            materialise(path.removeprefix(PREFIX))
        elif path.startswith(PREFIX):
            known = ", ".join(sorted(PREFIX + name for name in CONFIGS))
            raise InputError(f"vLLM cannot serve {path}", where="model.path", code="PD3104", hint=f"one of {known}")
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


ADAPTER = VLLM()

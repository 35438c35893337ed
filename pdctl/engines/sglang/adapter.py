"""The SGLang adapter: everything `up` asks of an engine."""

from collections.abc import Sequence

from pdctl.engines.base import Command, Instance, Probe, Readiness
from pdctl.engines.real import RealEngine
from pdctl.engines.sglang.command import command
from pdctl.engines.sglang.probe import probe
from pdctl.engines.sglang.stages import stage
from pdctl.fleet.model import Pool


class SGLang(RealEngine):
    """SGLang 0.5.x, prefill and decode, behind smg or sglang-router."""

    name = "sglang"
    readiness = Readiness("/health", 1800.0)
    plugins = "sglang.srt.plugins"
    packages = {"mooncake": "mooncake.engine", "nixl": "nixl._api", "mori": "mori", "ascend": "mf_adapter"}  # noqa: RUF012
    skipped_words = 3
    parser = """\
import json, sys
from sglang.srt.server_args import prepare_server_args
for index, argv in enumerate(json.load(sys.stdin)):
    print(index, flush=True)
    arguments = prepare_server_args(argv)
    getattr(arguments, "resolve_once", lambda: None)()
"""

    def purposes(self, pool: Pool) -> Sequence[str]:
        """A prefill engine also runs the bootstrap server, where decode engines find its ranks."""
        return ("http", "bootstrap") if pool.role == "prefill" else ("http",)

    def command(self, instance: Instance) -> Command:
        """The exact command line and environment."""
        return command(instance)

    def stage(self, log: str) -> str | None:
        """What a starting engine is doing."""
        return stage(log)

    def probe(self, prefill: Instance, decode: Instance, prompt: str, max_tokens: int, timeout_s: float) -> Probe:
        """One greedy request through this very pair."""
        return probe(prefill, decode, prompt, max_tokens, timeout_s)


ADAPTER = SGLang()

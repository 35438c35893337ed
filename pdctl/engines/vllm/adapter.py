"""The vLLM adapter: everything `up` asks of an engine."""

from collections.abc import Sequence

from pdctl.engines.base import Command, Instance, Probe, Readiness
from pdctl.engines.real import PAIRED, RealEngine
from pdctl.engines.vllm.command import command
from pdctl.engines.vllm.probe import probe
from pdctl.engines.vllm.stages import stage
from pdctl.fleet.model import Pool


class VLLM(RealEngine):
    """vLLM 0.32, prefill and decode, behind vllm-router."""

    name = "vllm"
    readiness = Readiness("/health", 1800.0)
    plugins = "vllm.general_plugins"
    packages = {"mooncake": "mooncake.engine", "nixl": "nixl._api"}  # noqa: RUF012
    skipped_words = 4
    parser = """\
import json, sys
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
for index, argv in enumerate(json.load(sys.stdin)):
    print(index, flush=True)
    parser.parse_args(argv)
"""

    def purposes(self, pool: Pool) -> Sequence[str]:
        """Both roles of a NIXL pair listen on a side channel; Mooncake's prefill runs a bootstrap server."""
        return ("http", "side_channel", "bootstrap") if pool.role in PAIRED else ("http",)

    def command(self, instance: Instance) -> Command:
        """The exact command line and environment."""
        return command(instance)

    def stage(self, log: str) -> str | None:
        """What a starting engine is doing."""
        return stage(log)

    def probe(self, prefill: Instance, decode: Instance, prompt: str, max_tokens: int, timeout_s: float) -> Probe:
        """One greedy request through this very pair."""
        return probe(prefill, decode, prompt, max_tokens, timeout_s)


ADAPTER = VLLM()

"""The vLLM adapter: everything `up` asks of vLLM 0.32, prefill and decode, behind vllm-router."""

from collections.abc import Sequence
from typing import Final

from pdctl.engines.base import Readiness
from pdctl.engines.core import REGISTRY, SECRET
from pdctl.engines.real import PAIRED, RealEngine
from pdctl.engines.vllm.command import PROGRAM, command, settled, unread
from pdctl.engines.vllm.nodes import serves
from pdctl.engines.vllm.probe import probe
from pdctl.engines.vllm.stages import stage
from pdctl.fleet.model import Pool
from pdctl.python import module

_PARSER: Final = """\
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


def _ports(pool: Pool) -> Sequence[str]:
    """Both roles of a NIXL pair listen on a side channel; Mooncake's prefill runs a bootstrap server; the core's has a
    registry; nodes meet."""
    ports = ["http", "side_channel", "bootstrap"] if pool.role in PAIRED else ["http"]
    ports += [REGISTRY] if pool.role == "prefill" and pool.core != "engine" else []
    return [*ports, "dist_init"] if pool.nodes > 1 else ports


ADAPTER: Final = RealEngine(
    name="vllm",
    key_variable="VLLM_API_KEY",
    secret_variable=SECRET,
    readiness=Readiness("/health", 1800.0),
    plugins="vllm.general_plugins",
    packages={"mooncake": "mooncake.engine", "nixl": "nixl._api"},
    ports=_ports,
    answering=serves,
    build=command,
    settle=settled,
    ignore=unread,
    read=stage,
    ask=probe,
    parser=_PARSER,
    skipped_words=len(module("python", *PROGRAM)),
)

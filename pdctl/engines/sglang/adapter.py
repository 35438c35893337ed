"""The SGLang adapter: everything `up` asks of SGLang 0.5.x, prefill and decode, behind smg or sglang-router."""

from collections.abc import Sequence
from typing import Final

from pdctl.engines.base import Readiness
from pdctl.engines.core import SECRET
from pdctl.engines.real import RealEngine
from pdctl.engines.sglang.command import PROGRAM, command, settled, unread
from pdctl.engines.sglang.probe import probe
from pdctl.engines.sglang.stages import stage
from pdctl.fleet.model import Pool
from pdctl.python import module
from pdctl_transfer.plugins.keyed import VARIABLE

_PARSER: Final = """\
import json, sys
from sglang.srt.server_args import prepare_server_args
for index, argv in enumerate(json.load(sys.stdin)):
    print(index, flush=True)
    arguments = prepare_server_args(argv)
    getattr(arguments, "resolve_once", lambda: None)()
"""


def _ports(pool: Pool) -> Sequence[str]:
    """A prefill engine also runs the bootstrap server, where decode engines find its ranks; nodes meet at a port."""
    ports = ("http", "bootstrap") if pool.role == "prefill" else ("http",)
    return (*ports, "dist_init") if pool.nodes > 1 else ports


ADAPTER: Final = RealEngine(
    name="sglang",
    key_variable=VARIABLE,
    secret_variable=SECRET,
    readiness=Readiness("/health", 1800.0),
    plugins="sglang.srt.plugins",
    packages={"mooncake": "mooncake.engine", "nixl": "nixl._api", "mori": "mori", "ascend": "mf_adapter"},
    ports=_ports,
    answering=lambda instance: instance.node == 0,
    build=command,
    settle=settled,
    ignore=unread,
    read=stage,
    ask=probe,
    parser=_PARSER,
    skipped_words=len(module("python", *PROGRAM)),
)

"""The vllm-ascend adapter: vLLM's, but for what its own connectors want."""

from typing import Final

from msgspec.structs import replace

from pdctl.engines.vllm.adapter import ADAPTER as VLLM
from pdctl.engines.vllm_ascend.command import NAME, command, ports, settled, unread

ADAPTER: Final = replace(
    VLLM,
    name=NAME,
    secret_variable=None,
    packages={"mooncake": "mooncake.engine"},
    ports=ports,
    build=command,
    settle=settled,
    ignore=unread,
)

"""Lets vLLM's MooncakeConnector run on a host without an accelerator; named by `kv_connector_module_path`.

The stock connector asks torch for the current accelerator's index, which fails where there is none, and opens its
bootstrap server on all interfaces: here it is device 0, and the loopback interface.
"""

from typing import Any

import torch

torch.accelerator.current_device_index = lambda: 0

from vllm.distributed.kv_transfer.kv_connector.v1.mooncake import mooncake_connector  # noqa: E402 - after the line above

_BootstrapServer = mooncake_connector.MooncakeBootstrapServer


class _LoopbackBootstrapServer(_BootstrapServer):  # type: ignore[misc, valid-type]
    def __init__(self, host: str, port: int, *args: Any, **kwargs: Any) -> None:
        super().__init__("127.0.0.1", port, *args, **kwargs)


mooncake_connector.MooncakeBootstrapServer = _LoopbackBootstrapServer


class MooncakeCPUConnector(mooncake_connector.MooncakeConnector):  # type: ignore[misc]
    """The stock connector under a name of its own."""

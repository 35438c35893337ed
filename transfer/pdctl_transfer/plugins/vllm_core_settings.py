"""What an operator says of the core in vLLM's connector config: `kv_connector_extra_config: {"pdctl": {…}}`."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.core import options
from pdctl_transfer.session.options import Options

KEY: Final = "pdctl"


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """The object `pdctl`. registry_port: prefill's, plus its data-parallel index; 0: any free one."""

    registry_host: str = "127.0.0.1"
    registry_port: int = 0
    fabric: Literal["mooncake", "nixl"] = "mooncake"
    protocol: Literal["tcp", "rdma"] = "tcp"
    device: str = ""
    session: dict[str, Any] = {}
    fallback: bool = True
    """Whether NIXL's connector stands beside the core, for pairs of which one side has none."""

    def options(self) -> Options:
        """The session's options; it listens where the registry does unless they say otherwise. TransferError PD4019."""
        return options(self.registry_host, self.session)

    @property
    def told(self) -> str:
        """The host that decode is told for the registry."""
        return str(self.session.get("advertise") or self.registry_host)


def settings(extra: Mapping[str, Any] | None) -> Settings:
    """From `kv_connector_extra_config`. TransferError PD3145 for what is no setting."""
    given = (extra or {}).get(KEY, {})
    unknown = sorted(set(given) - set(Settings.__struct_fields__)) if isinstance(given, Mapping) else []
    if unknown:
        raise TransferError(f"{KEY}.{unknown[0]}: no such setting", code="PD3145")
    try:
        return msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as fault:
        raise TransferError(f"{KEY}: {fault}", code="PD3145") from fault

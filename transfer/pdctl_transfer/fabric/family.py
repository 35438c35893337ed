"""The internet protocol that Mooncake speaks, and how it spells addresses.

Observed (0.3.13): it speaks IPv6 to all peers of a process or to none, as MC_USE_IPV6 said when its library was loaded;
set later, or with an address of the other kind, every write fails with "check DNS". It takes an address with brackets
where a port follows, and without where none does.
"""

import ipaddress
import os
import sys
from typing import Final

from pdctl_transfer.errors import FabricError

MODULE: Final = "mooncake.engine"
IPV6: Final = "MC_USE_IPV6"


def bracketed(host: str) -> str:
    """As it stands before a port."""
    return f"[{host}]" if ":" in host else host


def speak(host: str) -> str:
    """Have Mooncake use the protocol of this address, and the address as it takes it without a port.

    FabricError PD4010 where its library was loaded for the other protocol.
    """
    host = host.removeprefix("[").removesuffix("]")
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        return host  # a name: Mooncake looks it up for the protocol that it has
    loaded, six = MODULE in sys.modules, IPV6 in os.environ
    if version == 6 and not six and not loaded:
        os.environ[IPV6] = "1"
    elif (version == 6) != six:
        has = f"was loaded without {IPV6}" if version == 6 else f"was told {IPV6}"
        raise FabricError(f"Mooncake {has} in this process and cannot use {host}: it speaks IPv6 everywhere or nowhere")
    return host

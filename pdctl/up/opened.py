"""The ports of a unit: those that it was given, and what its processes really listen on."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, to_builtins

from pdctl.launch.listening import Listener
from pdctl.launch.state import ROUTER, UnitEntry

OTHER = "other"
"""The name of a port that nobody declared, such as those that Mooncake opens."""


class PortView(Struct, frozen=True):
    """One port. `address` is None where nothing listens; `key` says what it asks for: api_key, control_key, secret."""

    name: str
    address: str | None
    number: int
    key: str | None

    def document(self) -> dict[str, Any]:
        """As `status -o json` has it."""
        found: dict[str, Any] = to_builtins(self)
        return found


def ports_of(entry: UnitEntry, found: Sequence[Listener]) -> tuple[PortView, ...]:
    """Declared ports first, each at every address where it listens."""
    declared = [
        PortView(name, address, number, entry.keys.get(name))
        for name, number in entry.ports.items()
        for address in ([one.address for one in found if one.port == number] or (None,))
    ]
    others = [one for one in found if one.port not in entry.ports.values()]
    return (*declared, *(PortView(OTHER, one.address, one.port, None) for one in others))


def open_to_others(unit: str, ports: Sequence[PortView]) -> tuple[str, ...]:
    """Those that other hosts reach and that do not ask everyone for a key: `prefill-0 0.0.0.0:15565 (PD2016)`."""
    return tuple(
        f"{unit} {_shown(one)} ({_code(unit, one)})"
        for one in ports
        if one.address is not None and Listener(one.address, one.number).is_open and one.key in (None, "control_key")
    )


def _code(unit: str, port: PortView) -> str:
    return "PD2016" if port.name == OTHER else "PD2018" if unit == ROUTER else "PD2017"


def _shown(port: PortView) -> str:
    return f"[{port.address}]:{port.number}" if ":" in (port.address or "") else f"{port.address}:{port.number}"

"""The routers that can stand before a fleet."""

from pdctl.routers.contracts import CONTRACTS, Contract, contract_of, needed
from pdctl.routers.kinds import KEY_FLAGS, READY_PATH, ROUTERS, Backend, RouterKind, router_argv

__all__ = [
    "CONTRACTS",
    "KEY_FLAGS",
    "READY_PATH",
    "ROUTERS",
    "Backend",
    "Contract",
    "RouterKind",
    "contract_of",
    "needed",
    "router_argv",
]

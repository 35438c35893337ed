"""The routers that can stand before a fleet."""

from pdctl.routers.kinds import READY_PATH, ROUTERS, Backend, RouterKind, router_argv

__all__ = ["READY_PATH", "ROUTERS", "Backend", "RouterKind", "router_argv"]
